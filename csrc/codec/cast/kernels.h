// Stochastic rounding: a table of functions per instruction set; kernels.cc picks a table at run time. All
// tables give the same bytes. Private to cast/ and its tests. (reduce/kernels.h rounds to nearest.)
#pragma once

#include <cstdint>
#include <span>

namespace jaxccomp::cast {

struct Kernels {
  // Writes `count` values as bfloat16; `random` has 16 random bits for each. Doubles are first rounded to
  // the nearest float. Pointers need no alignment.
  using Round = void (*)(void* dst, const void* src, const uint16_t* random, int64_t count);

  const char* name;
  Round float_to_bfloat16;
  Round double_to_bfloat16;
};

// The tables that this machine can run, the fastest first; never empty.
std::span<const Kernels* const> RunnableKernels();
inline const Kernels& BestKernels() { return *RunnableKernels().front(); }

}  // namespace jaxccomp::cast
