// Kernels for x86 with AVX2: a bit per word says which are above the threshold. Few are, so that
// going from bit to bit costs little.
#if defined(__x86_64__)
#if !defined(__AVX2__)
#error "compile this file with -mavx2"
#endif

#include <immintrin.h>

#include "codec/sparse/kernels.h"

namespace jaxccomp::sparse {

extern const Kernels kAvx2Kernels;

namespace {

#include "codec/sparse/generic.inl"

inline __m256i Load(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// One bit for each of 32 words, the first lowest. Magnitudes have no sign bit, so that comparing
// signed integers does.
inline uint32_t Mask(const std::byte* src, uint16_t threshold) {
  const __m256i limit = _mm256_set1_epi16(static_cast<short>(threshold - 1));
  const __m256i magnitude = _mm256_set1_epi16(0x7fff);
  const __m256i a = _mm256_cmpgt_epi16(_mm256_and_si256(Load(src), magnitude), limit);
  const __m256i b = _mm256_cmpgt_epi16(_mm256_and_si256(Load(src + 32), magnitude), limit);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8);
  return static_cast<uint32_t>(_mm256_movemask_epi8(packed));
}

inline uint32_t Mask(const std::byte* src, uint32_t threshold) {
  const __m256i limit = _mm256_set1_epi32(static_cast<int>(threshold - 1));
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  uint32_t mask = 0;
  for (int i = 0; i < 4; ++i) {
    const __m256i above =
        _mm256_cmpgt_epi32(_mm256_and_si256(Load(src + 32 * i), magnitude), limit);
    mask |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(above))) << (8 * i);
  }
  return mask;
}

inline uint32_t Mask(const std::byte* src, uint64_t threshold) {
  const __m256i limit = _mm256_set1_epi64x(static_cast<long long>(threshold - 1));
  const __m256i magnitude = _mm256_set1_epi64x(0x7fffffffffffffff);
  uint32_t mask = 0;
  for (int i = 0; i < 8; ++i) {
    const __m256i above =
        _mm256_cmpgt_epi64(_mm256_and_si256(Load(src + 32 * i), magnitude), limit);
    mask |= static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(above))) << (4 * i);
  }
  return mask;
}

template <typename Word>
int64_t AboveAll(const std::byte* src, int64_t count, Word threshold, uint16_t* offsets) {
  int64_t i = 0, found = 0;
  for (; i + 32 <= count; i += 32) {
    for (uint32_t mask = Mask(src + i * sizeof(Word), threshold); mask != 0; mask &= mask - 1) {
      offsets[found++] = static_cast<uint16_t>(i + __builtin_ctz(mask));
    }
  }
  return found + AboveFrom(src, i, count, threshold, offsets + found);
}

}  // namespace

constinit const Kernels kAvx2Kernels = TableOf("avx2");

}  // namespace jaxccomp::sparse

#endif
