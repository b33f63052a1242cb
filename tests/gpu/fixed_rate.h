// Checks and measures the kernels of the codecs of a fixed rate on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace jaxccomp {

// The part of the program that is all of them. Other filters are a part of a codec's spec.
inline constexpr std::string_view kFixedRate = "fixed_rate";

// Whether the filter names any.
bool HasFixedRate(std::string_view filter);

// Whether bytes, values and sums are the CPU's; with int8, also when a graph encodes. Prints a line for
// each codec and dtype.
bool CompareFixedRate(std::string_view filter, cudaStream_t stream);

// Prints the rate of a copy on the device, then a line for each codec, dtype and operation.
void MeasureFixedRate(std::string_view filter, cudaStream_t stream);

}  // namespace jaxccomp
