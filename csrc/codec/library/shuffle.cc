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

constexpr ShuffleKernels kShuffleGeneric = {
    "generic",
    [](const std::byte* src, int64_t count, int64_t word_bytes, std::byte* dst) {
      if (word_bytes == 2) return Shuffle<2>(src, count, dst);
      if (word_bytes == 4) return Shuffle<4>(src, count, dst);
      Shuffle<8>(src, count, dst);
    },
    [](const std::byte* src, int64_t count, int64_t word_bytes, std::byte* dst) {
      if (word_bytes == 2) return Unshuffle<2>(src, count, dst);
      if (word_bytes == 4) return Unshuffle<4>(src, count, dst);
      Unshuffle<8>(src, count, dst);
    }};

}  // namespace

std::span<const ShuffleKernels* const> RunnableShuffleKernels() {
  static const std::vector<const ShuffleKernels*> runnable = Runnable<ShuffleKernels>(
      {JAXCCOMP_X86_TABLE(avx2, kShuffleAvx2), &kShuffleGeneric});
  return runnable;
}

}  // namespace jaxccomp::library
