#include "codec/random_bits.h"

#include <vector>

#include "codec/random.h"
#include "common/instruction_sets.h"

namespace jaxccomp {

extern const RandomKernels kAvx2RandomKernels;
extern const RandomKernels kAvx512RandomKernels;

namespace {

void Fill(const RandomKey& key, uint64_t index, int64_t groups, uint16_t* out) {
  for (int64_t i = 0; i < groups; ++i) {
    for (uint32_t word : Philox(key, index + static_cast<uint64_t>(i))) {
      *out++ = static_cast<uint16_t>(word);
      *out++ = static_cast<uint16_t>(word >> 16);
    }
  }
}

constexpr RandomKernels kGeneric = {"generic", &Fill};

}  // namespace

std::span<const RandomKernels* const> RunnableRandomKernels() {
  static const std::vector<const RandomKernels*> runnable = Runnable<RandomKernels>(
      {JAXCCOMP_X86_TABLE(avx512, kAvx512RandomKernels),
       JAXCCOMP_X86_TABLE(avx2, kAvx2RandomKernels), &kGeneric});
  return runnable;
}

const uint16_t* RandomBits(const RandomKey& key, int64_t first, int64_t count, uint16_t* room) {
  const int64_t before = first % 8;
  const int64_t groups = (before + count + 63) / 64 * 8;
  RunnableRandomKernels().front()->fill(key, static_cast<uint64_t>(first / 8), groups, room);
  return room + before;
}

}  // namespace jaxccomp
