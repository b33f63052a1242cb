// Byte planes: the first bytes of all words, then the second ones, and so on. What general
// compressors make of floats is mostly in the planes of the exponents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/dtype.h"

namespace jaxccomp::library {

// The integer that a value is, or one of the two parts of a complex value.
constexpr int64_t WordBytes(DType dtype) {
  const bool complex = dtype == DType::kComplex64 || dtype == DType::kComplex128;
  return complex ? SizeBytes(dtype) / 2 : SizeBytes(dtype);
}

// All give the same bytes. Pointers need no alignment and do not overlap.
struct ShuffleKernels {
  const char* name;
  // dst[p * count + i] = byte p of word i, for words of 2, 4 or 8 bytes.
  void (*shuffle)(const std::byte* src, int64_t count, int64_t word_bytes, std::byte* dst);
  // The inverse.
  void (*unshuffle)(const std::byte* src, int64_t count, int64_t word_bytes, std::byte* dst);
};

// The tables that this machine can run, the best first; never empty.
std::span<const ShuffleKernels* const> RunnableShuffleKernels();
inline const ShuffleKernels& BestShuffleKernels() { return *RunnableShuffleKernels().front(); }

}  // namespace jaxccomp::library
