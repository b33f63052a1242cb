// Checks and measures the kernels of the codec "lossless" on a GPU, as main.cc does the others.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "common/dtype.h"
#include "lossy_codecs.h"

namespace jaxccomp {

// Values as trained weights have them.
testing::Bytes Weights(DType dtype, int64_t count);

// Fills device memory with weights that begin again every kDistinctBytes, which is more than any codec
// looks back; `some` are as many.
inline constexpr int64_t kDistinctBytes = 16 << 20;
void PutWeights(const testing::Bytes& some, int64_t bytes, std::byte* to);

// What was measured of values of that many bytes: bytes of values per second.
struct Rates {
  DType dtype;
  int64_t bytes;
  double encode;
  double decode;
};

// Whether the GPU's bytes are the CPU's, and either decodes the other's. Prints a line for each dtype.
bool CompareLossless(cudaStream_t stream);

// Prints a line for each dtype and size: rates of values, and how many times smaller they become.
std::vector<Rates> MeasureLossless(cudaStream_t stream);

}  // namespace jaxccomp
