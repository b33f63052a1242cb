// Kernels for x86 with AVX-512: offsets are compressed 16 at a time, without a branch.
#if defined(__x86_64__)
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__)
#error "compile this file with -mavx512f -mavx512bw -mavx512vl"
#endif

#include <immintrin.h>

#include "codec/sparse/kernels.h"

namespace jaxccomp::sparse {

extern const Kernels kAvx512Kernels;

namespace {

#include "codec/sparse/generic.inl"

// One bit for each of 16 words, the first in the lowest bit.
inline __mmask16 Mask(const std::byte* src, uint16_t threshold) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
  return _mm256_cmpge_epu16_mask(_mm256_and_si256(words, _mm256_set1_epi16(0x7fff)),
                                 _mm256_set1_epi16(static_cast<short>(threshold)));
}

inline __mmask16 Mask(const std::byte* src, uint32_t threshold) {
  return _mm512_cmpge_epu32_mask(
      _mm512_and_si512(_mm512_loadu_si512(src), _mm512_set1_epi32(0x7fffffff)),
      _mm512_set1_epi32(static_cast<int>(threshold)));
}

inline __mmask16 Mask(const std::byte* src, uint64_t threshold) {
  const __m512i magnitude = _mm512_set1_epi64(0x7fffffffffffffff);
  const __m512i limit = _mm512_set1_epi64(static_cast<long long>(threshold));
  const __mmask8 low =
      _mm512_cmpge_epu64_mask(_mm512_and_si512(_mm512_loadu_si512(src), magnitude), limit);
  const __mmask8 high =
      _mm512_cmpge_epu64_mask(_mm512_and_si512(_mm512_loadu_si512(src + 64), magnitude), limit);
  return static_cast<__mmask16>(low | high << 8);
}

template <typename Word>
int64_t AboveAll(const std::byte* src, int64_t count, Word threshold, uint16_t* offsets) {
  int64_t i = 0, found = 0;
  __m512i at = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (; i + 16 <= count; i += 16) {
    const __mmask16 mask = Mask(src + i * sizeof(Word), threshold);
    const __m512i some = _mm512_maskz_compress_epi32(mask, at);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(offsets + found),
                        _mm512_maskz_cvtepi32_epi16(0xffff, some));
    found += __builtin_popcount(mask);
    at = _mm512_add_epi32(at, _mm512_set1_epi32(16));
  }
  return found + AboveFrom(src, i, count, threshold, offsets + found);
}

}  // namespace

constinit const Kernels kAvx512Kernels = TableOf("avx512");

}  // namespace jaxccomp::sparse

#endif
