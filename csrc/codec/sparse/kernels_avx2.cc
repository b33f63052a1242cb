// Kernels for x86 with AVX2: one bit per word for words above the threshold. Few bits are set, so that
// iterating over them is cheap.
#if defined(__x86_64__)
#include "codec/sparse/kernels.h"
#include "codec/vectors.inl"

namespace jaxccomp::sparse {

extern const Kernels kAvx2Kernels;

namespace {

#include "codec/sparse/generic.inl"

using namespace vectors;

// Magnitudes have no sign bit: signed compares are correct.
template <typename Word>
int64_t AboveAll(const std::byte* src, int64_t count, Word threshold, uint16_t* offsets) {
  using V = typename VectorOf<Word>::Type;
  const V limit = Fill<V>(threshold - 1), magnitude = Fill<V>(static_cast<Word>(~Word{0}) >> 1);
  int64_t i = 0, found = 0;
  for (; i + 64 <= count; i += 64) {
    uint64_t above = Bits64<Word>([&](int k) {
      return Greater(Load<V>(src + i * sizeof(Word) + k * kVectorBytes) & magnitude, limit);
    });
    for (; above != 0; above &= above - 1) {
      offsets[found++] = static_cast<uint16_t>(i + std::countr_zero(above));
    }
  }
  return found + AboveFrom(src, i, count, threshold, offsets + found);
}

}  // namespace

constinit const Kernels kAvx2Kernels = TableOf("avx2");

}  // namespace jaxccomp::sparse

#endif
