// Checks and measures the kernels of the codec "lossless" on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "common/dtype.h"
#include "lossy_codecs.h"

namespace jaxccomp {

// Values like trained weights.
testing::Bytes Weights(DType dtype, int64_t count);

// Fills device memory with copies of `some`, which has kDistinctBytes: more than any codec's window.
inline constexpr int64_t kDistinctBytes = 16 << 20;
void PutWeights(const testing::Bytes& some, int64_t bytes, std::byte* to);

// Measured rates for `bytes` bytes of values: bytes of values per second.
struct Rates {
  DType dtype;
  int64_t bytes;
  double encode;
  double decode;
};

// Whether the GPU's encoding equals the CPU's, and the GPU decodes it. Prints a line for each dtype.
bool CompareLossless(cudaStream_t stream);

// Prints a line for each dtype and size: rates and compression ratio.
std::vector<Rates> MeasureLossless(cudaStream_t stream);

}  // namespace jaxccomp
