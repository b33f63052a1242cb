// Checks and measures the kernels of fixed-rate codecs on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace jaxccomp {

// The filter for all fixed-rate codecs. Other filters are substrings of a codec's spec.
inline constexpr std::string_view kFixedRate = "fixed_rate";

// Whether the filter matches any codec.
bool HasFixedRate(std::string_view filter);

// Whether bytes, values and sums equal the CPU's; with int8, also for encoding in a CUDA graph. Prints a line
// for each codec and dtype.
bool CompareFixedRate(std::string_view filter, cudaStream_t stream);

// Prints the rate of a copy on the device, then a line for each codec, dtype and operation.
void MeasureFixedRate(std::string_view filter, cudaStream_t stream);

}  // namespace jaxccomp
