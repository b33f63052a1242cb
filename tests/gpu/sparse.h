// Checks and measures the kernels of the sparse codecs on a GPU, as main.cc does the others. `filter`
// is part of a spec.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace jaxccomp {

// Whether the GPU's bytes, values, sums and verdicts are the CPU's. Prints a line for each codec and
// dtype.
bool CompareSparse(cudaStream_t stream, std::string_view filter);

// Prints a line for each codec, dtype, size and operation: bytes of values a second, and the part of
// `copy_rate`, bytes a second that are read and written, that the bytes come to which must be moved.
void MeasureSparse(cudaStream_t stream, double copy_rate, std::string_view filter);

}  // namespace jaxccomp
