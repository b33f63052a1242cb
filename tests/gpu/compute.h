// Checks and measures the kernels of csrc/cuda/kernels/compute/compute.h on a GPU, as main.cc does those of
// codecs.
#pragma once

#include <cuda_runtime_api.h>

namespace jaxccomp {

// Whether the GPU's bits are the CPU's. Prints a line for each operation.
bool CompareCompute(cudaStream_t stream);

// Prints a line for each operation: its rate in bytes read and written, and the part of `copy_rate`,
// bytes a second, that this is.
void MeasureCompute(cudaStream_t stream, double copy_rate);

}  // namespace jaxccomp
