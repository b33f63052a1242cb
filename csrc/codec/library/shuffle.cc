#include "codec/library/shuffle.h"

#include <vector>

#include "common/instruction_sets.h"

namespace jaxccomp::library {

extern const ShuffleKernels kShuffleAvx2;

namespace {

template <int kWordBytes>
void Shuffle(const std::byte* src, int64_t count, std::byte* dst) {
  for (int p = 0; p < kWordBytes; ++p) {
    for (int64_t i = 0; i < count; ++i) dst[p * count + i] = src[i * kWordBytes + p];
  }
}

template <int kWordBytes>
void Unshuffle(const std::byte* src, int64_t count, std::byte* dst) {
  for (int64_t i = 0; i < count; ++i) {
    for (int p = 0; p < kWordBytes; ++p) dst[i * kWordBytes + p] = src[p * count + i];
  }
}

#include "codec/library/shuffle_table.inl"

constexpr ShuffleKernels kShuffleGeneric = TableOf("generic");

}  // namespace

std::span<const ShuffleKernels* const> RunnableShuffleKernels() {
  static const std::vector<const ShuffleKernels*> runnable = Runnable<ShuffleKernels>(
      {JAXCCOMP_X86_TABLE(avx2, kShuffleAvx2), &kShuffleGeneric});
  return runnable;
}

}  // namespace jaxccomp::library
