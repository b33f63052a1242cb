// Byte planes: the first bytes of all words, then the second ones, and so on. General compressors
// gain mostly in the exponents' planes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/dtype.h"

namespace jaxccomp::library {

// The bytes of a real value, or of one part of a complex value.
constexpr int64_t WordBytes(DType dtype) {
  const bool complex = dtype == DType::kComplex64 || dtype == DType::kComplex128;
  return complex ? SizeBytes(dtype) / 2 : SizeBytes(dtype);
}

// All tables give the same bytes. Pointers need no alignment and do not overlap.
struct ShuffleKernels {
  const char* name;
  // dst[p * count + i] = byte p of word i, for words of 2, 4 or 8 bytes.
  void (*shuffle)(const std::byte* src, int64_t count, int64_t word_bytes, std::byte* dst);
  // The inverse.
  void (*unshuffle)(const std::byte* src, int64_t count, int64_t word_bytes, std::byte* dst);
};

// The tables that this machine can run, the fastest first; never empty.
std::span<const ShuffleKernels* const> RunnableShuffleKernels();
inline const ShuffleKernels& BestShuffleKernels() { return *RunnableShuffleKernels().front(); }

}  // namespace jaxccomp::library
