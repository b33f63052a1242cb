// The inner loops of the sparse codecs: a table of functions per instruction set; kernels.cc picks a
// table at run time. All tables give the same results. Private to sparse/ and its tests.
//
// A word is the bits of a value, of 2, 4 or 8 bytes; its magnitude is the word without the sign bit.
// Magnitudes compared as integers are in the order of the floats; NaN and infinity are the greatest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace jaxccomp::sparse {

struct Kernels {
  const char* name;
  // Write the offsets of words whose magnitude is at least `threshold` (positive), and return their
  // number. `count` is at most a sub-block, 65536 words; `offsets` has room for 65536.
  int64_t (*above2)(const std::byte* src, int64_t count, uint16_t threshold, uint16_t* offsets);
  int64_t (*above4)(const std::byte* src, int64_t count, uint32_t threshold, uint16_t* offsets);
  int64_t (*above8)(const std::byte* src, int64_t count, uint64_t threshold, uint16_t* offsets);
  // Return whether any word's magnitude is at least `threshold`.
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

// The tables that this machine can run, the fastest first; never empty.
std::span<const Kernels* const> RunnableKernels();
inline const Kernels& BestKernels() { return *RunnableKernels().front(); }

}  // namespace jaxccomp::sparse
