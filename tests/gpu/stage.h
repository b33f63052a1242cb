// Checks and measures what the stage does on a GPU: copies and codes through pinned memory, and
// operations of two ranks that share the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace jaxccomp {

// Whether copies and events work, codes of "lossless" in pinned memory are the CPU's, and two ranks get
// what they should. Prints a line for each check.
bool CompareStage(cudaStream_t stream);

// Whether values come back from that codec's codes in pinned memory, and the codes are the CPU's where
// the codec runs there. Prints a line.
bool CompareStagedCodes(const std::string& spec, cudaStream_t stream);

// Prints a line for each size: bytes of values a second of a copy into pinned memory, of "lossless" into
// it and out of it, and of a broadcast to a second rank on the same GPU, raw and with "lossless".
void MeasureStage(cudaStream_t stream);

}  // namespace jaxccomp
