// Byte planes with AVX2: even and odd bytes are separated once for words of two bytes, twice for four,
// three times for eight.
#if defined(__x86_64__)
#include "codec/library/shuffle.h"
#include "codec/vectors.inl"

namespace jaxccomp::library {

extern const ShuffleKernels kShuffleAvx2;

namespace {

using namespace vectors;

// `v` holds 32 consecutive words; afterwards v[p] holds byte p of each.
template <int kWordBytes>
inline void Part(U8* v) {
  if constexpr (kWordBytes > 1) {
    constexpr int kHalf = kWordBytes / 2;
    const U16 low = Fill<U16>(255);
    U8 even[kHalf], odd[kHalf];
    for (int i = 0; i < kHalf; ++i) {
      const U16 a = U16(v[2 * i]), b = U16(v[2 * i + 1]);
      const U8 e = Pack16(U8(a & low), U8(b & low)), o = Pack16(U8(a >> 8), U8(b >> 8));
      even[i] = U8(_mm256_permute4x64_epi64(Native(e), 0xd8));   // Pack16 works within lanes
      odd[i] = U8(_mm256_permute4x64_epi64(Native(o), 0xd8));
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
inline void Join(U8* v) {
  if constexpr (kWordBytes > 1) {
    constexpr int kHalf = kWordBytes / 2;
    U8 even[kHalf], odd[kHalf];
    for (int i = 0; i < kHalf; ++i) {
      even[i] = v[2 * i];
      odd[i] = v[2 * i + 1];
    }
    Join<kHalf>(even);
    Join<kHalf>(odd);
    for (int i = 0; i < kHalf; ++i) {
      const Native a = Native(UnpackLow8(even[i], odd[i])), b = Native(UnpackHigh8(even[i], odd[i]));
      v[2 * i] = U8(_mm256_permute2x128_si256(a, b, 0x20));
      v[2 * i + 1] = U8(_mm256_permute2x128_si256(a, b, 0x31));
    }
  }
}

template <int kWordBytes>
void Shuffle(const std::byte* src, int64_t count, std::byte* dst) {
  int64_t i = 0;
  for (; i + kVectorBytes <= count; i += kVectorBytes) {
    U8 v[kWordBytes];
    for (int p = 0; p < kWordBytes; ++p) v[p] = Load<U8>(src + i * kWordBytes + p * kVectorBytes);
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
    U8 v[kWordBytes];
    for (int p = 0; p < kWordBytes; ++p) v[p] = Load<U8>(src + p * count + i);
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
