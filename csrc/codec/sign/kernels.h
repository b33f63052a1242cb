// The inner loops: a table of functions per instruction set; kernels.cc picks a table at run time. All
// tables give the same bytes. Private to sign/ and its tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace jaxccomp::sign {

// Functions take one block of `count` floats. Pointers need no alignment.
struct Kernels {
  const char* name;

  // `means`: two floats, the mean of the values without the sign bit and of the values with it.
  void (*encode_onebit)(const void* values, int64_t count, std::byte* means, std::byte* bits);
  // `random`: random bits per value; null: round to nearest.
  void (*encode_ternary)(const void* values, int64_t count, const uint16_t* random,
                         std::byte* scale, std::byte* codes);
  void (*encode_threshold)(const void* values, int64_t count, float threshold, std::byte* codes);

  // The inverses: [0] stores values, [1] adds to them.
  void (*decode_onebit[2])(const std::byte* means, const std::byte* bits, int64_t count,
                           void* values);
  // meanings[c]: the value of the two-bit code c.
  void (*decode_pairs[2])(const float* meanings, const std::byte* codes, int64_t count,
                          void* values);
};

// The tables that this machine can run, the fastest first; never empty.
std::span<const Kernels* const> RunnableKernels();
inline const Kernels& BestKernels() { return *RunnableKernels().front(); }

}  // namespace jaxccomp::sign
