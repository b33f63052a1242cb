// Checks and measures the stage on a GPU: copies, encoding and decoding through pinned memory, and operations of
// two ranks that share the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace jaxccomp {

// Whether copies and events work, "lossless" encodes to the CPU's bytes in pinned memory, and operations of two
// ranks have the right results. Prints a line for each check.
bool CompareStage(cudaStream_t stream);

// Whether a codec round-trips through pinned memory, with the CPU's encoded bytes if it also runs on the CPU.
// Prints a line.
bool CompareStagedCodes(const std::string& spec, cudaStream_t stream);

// Prints a line for each size: GB of values per second of a copy into pinned memory, of encoding into it and
// decoding from it with "lossless", and of a broadcast to a second rank on the same GPU, raw and "lossless".
void MeasureStage(cudaStream_t stream);

}  // namespace jaxccomp
