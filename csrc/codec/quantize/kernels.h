// The inner loops: a table of functions per instruction set; kernels.cc picks a table at run time. All
// tables give the same bytes. Private to quantize/ and its tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace jaxccomp::quantize {

enum Format { kInt8, kInt4, kInt2, kE4m3, kE5m2 };
inline constexpr int kIntFormats = 3;
inline constexpr int kFormats = 5;

inline constexpr int kBits[kFormats] = {8, 4, 2, 8, 8};          // per code
inline constexpr int kScaleBytes[kFormats] = {2, 2, 2, 1, 1};

inline constexpr int64_t kBlocks[] = {32, 64, 128, 256};   // values per block
inline constexpr int kBlockSizes = 4;

struct Kernels {
  // Writes the scales and codes of `count` floats, in blocks; only the last may be shorter. `random`:
  // random bits per value for stochastic rounding. Pointers need no alignment.
  using Encode = void (*)(const void* values, int64_t count, const uint16_t* random,
                          std::byte* scales, std::byte* codes);
  // The inverse. Finite values are clamped to +-`limit`.
  using Decode = void (*)(const std::byte* scales, const std::byte* codes, int64_t count,
                          float limit, void* values);

  const char* name;
  Encode encode[kFormats][kBlockSizes];
  Encode encode_stochastic[kIntFormats][kBlockSizes];
  Decode decode[kFormats][kBlockSizes];
  Decode decode_add[kFormats][kBlockSizes];   // adds to the values
};

// The tables that this machine can run, the fastest first; never empty.
std::span<const Kernels* const> RunnableKernels();
inline const Kernels& BestKernels() { return *RunnableKernels().front(); }

}  // namespace jaxccomp::quantize
