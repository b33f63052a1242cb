// Byte planes with AVX2: even bytes are parted from odd ones once for words of two bytes, twice for
// four, three times for eight.
#if defined(__x86_64__)
#if !defined(__AVX2__)
#error "compile this file with -mavx2"
#endif

#include <immintrin.h>

#include "codec/library/shuffle.h"

namespace jaxccomp::library {

extern const ShuffleKernels kShuffleAvx2;

namespace {

constexpr int kVectorBytes = 32;

inline __m256i Load(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
inline void Store(std::byte* at, __m256i v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), v);
}

// `v` holds 32 words one after the other; then v[p] holds byte p of each.
template <int kWordBytes>
inline void Part(__m256i* v) {
  if constexpr (kWordBytes > 1) {
    constexpr int kHalf = kWordBytes / 2;
    const __m256i low = _mm256_set1_epi16(255);
    __m256i even[kHalf], odd[kHalf];
    for (int i = 0; i < kHalf; ++i) {
      const __m256i a = v[2 * i], b = v[2 * i + 1];
      const __m256i e = _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
      const __m256i o =
          _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
      even[i] = _mm256_permute4x64_epi64(e, 0xd8);   // packing is within lanes
      odd[i] = _mm256_permute4x64_epi64(o, 0xd8);
    }
    Part<kHalf>(even);
    Part<kHalf>(odd);
    for (int i = 0; i < kHalf; ++i) {
      v[2 * i] = even[i];
      v[2 * i + 1] = odd[i];
    }
  }
}

// The inverse.
template <int kWordBytes>
inline void Join(__m256i* v) {
  if constexpr (kWordBytes > 1) {
    constexpr int kHalf = kWordBytes / 2;
    __m256i even[kHalf], odd[kHalf];
    for (int i = 0; i < kHalf; ++i) {
      even[i] = v[2 * i];
      odd[i] = v[2 * i + 1];
    }
    Join<kHalf>(even);
    Join<kHalf>(odd);
    for (int i = 0; i < kHalf; ++i) {
      const __m256i a = _mm256_unpacklo_epi8(even[i], odd[i]);
      const __m256i b = _mm256_unpackhi_epi8(even[i], odd[i]);
      v[2 * i] = _mm256_permute2x128_si256(a, b, 0x20);
      v[2 * i + 1] = _mm256_permute2x128_si256(a, b, 0x31);
    }
  }
}

template <int kWordBytes>
void Shuffle(const std::byte* src, int64_t count, std::byte* dst) {
  int64_t i = 0;
  for (; i + kVectorBytes <= count; i += kVectorBytes) {
    __m256i v[kWordBytes];
    for (int p = 0; p < kWordBytes; ++p) v[p] = Load(src + i * kWordBytes + p * kVectorBytes);
    Part<kWordBytes>(v);
    for (int p = 0; p < kWordBytes; ++p) Store(dst + p * count + i, v[p]);
  }
  for (; i < count; ++i) {
    for (int p = 0; p < kWordBytes; ++p) dst[p * count + i] = src[i * kWordBytes + p];
  }
}

template <int kWordBytes>
void Unshuffle(const std::byte* src, int64_t count, std::byte* dst) {
  int64_t i = 0;
  for (; i + kVectorBytes <= count; i += kVectorBytes) {
    __m256i v[kWordBytes];
    for (int p = 0; p < kWordBytes; ++p) v[p] = Load(src + p * count + i);
    Join<kWordBytes>(v);
    for (int p = 0; p < kWordBytes; ++p) Store(dst + i * kWordBytes + p * kVectorBytes, v[p]);
  }
  for (; i < count; ++i) {
    for (int p = 0; p < kWordBytes; ++p) dst[i * kWordBytes + p] = src[p * count + i];
  }
}

#include "codec/library/shuffle_table.inl"

}  // namespace

constinit const ShuffleKernels kShuffleAvx2 = TableOf("avx2");

}  // namespace jaxccomp::library

#endif
