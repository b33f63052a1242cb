// The inner loops of the sparse codecs in one instruction set, as a table of functions; kernels.cc
// picks a table at run time. All tables give the same results. Private to sparse/ and its tests.
//
// A word is the bits of a value, of 2, 4 or 8 bytes; its magnitude is the word without the sign.
// Magnitudes of floats are ordered as these integers are; NaN and infinity are above all others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace jaxccomp::sparse {

struct Kernels {
  const char* name;
  // Writes the offsets of the words whose magnitude is at least `threshold`, which is positive, and
  // returns how many those are. At most 65536 words, a sub-block; `offsets` has room for as many.
  int64_t (*above2)(const std::byte* src, int64_t count, uint16_t threshold, uint16_t* offsets);
  int64_t (*above4)(const std::byte* src, int64_t count, uint32_t threshold, uint16_t* offsets);
  int64_t (*above8)(const std::byte* src, int64_t count, uint64_t threshold, uint16_t* offsets);
  // Whether any word has a magnitude of at least `threshold`.
  bool (*any_above2)(const std::byte* src, int64_t count, uint16_t threshold);
  bool (*any_above4)(const std::byte* src, int64_t count, uint32_t threshold);
  bool (*any_above8)(const std::byte* src, int64_t count, uint64_t threshold);
};

inline int64_t Above(const Kernels& k, const std::byte* src, int64_t n, uint16_t t, uint16_t* to) {
  return k.above2(src, n, t, to);
}
inline int64_t Above(const Kernels& k, const std::byte* src, int64_t n, uint32_t t, uint16_t* to) {
  return k.above4(src, n, t, to);
}
inline int64_t Above(const Kernels& k, const std::byte* src, int64_t n, uint64_t t, uint16_t* to) {
  return k.above8(src, n, t, to);
}
inline bool AnyAbove(const Kernels& k, const std::byte* src, int64_t n, uint16_t t) {
  return k.any_above2(src, n, t);
}
inline bool AnyAbove(const Kernels& k, const std::byte* src, int64_t n, uint32_t t) {
  return k.any_above4(src, n, t);
}
inline bool AnyAbove(const Kernels& k, const std::byte* src, int64_t n, uint64_t t) {
  return k.any_above8(src, n, t);
}

// The tables that this machine can run, the best first; never empty.
std::span<const Kernels* const> RunnableKernels();
inline const Kernels& BestKernels() { return *RunnableKernels().front(); }

}  // namespace jaxccomp::sparse
