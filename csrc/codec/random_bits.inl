// The body of random_bits_avx2.cc and random_bits_avx512.cc: Philox4x32-10 of several counters at
// once, in the lower halves of 64-bit lanes.
//
// Before including it, define JAXCCOMP_RANDOM_KERNELS (the variable to define) and
// JAXCCOMP_KERNELS_NAME.
#include <immintrin.h>

#include "codec/random_bits.h"

namespace jaxccomp {
namespace {

#if defined(__AVX512F__)
using Lanes = __m512i;
constexpr int kLanes = 8;
inline Lanes All(uint32_t v) { return _mm512_set1_epi64(v); }
inline Lanes From(uint64_t v) {
  return _mm512_add_epi64(_mm512_set1_epi64(static_cast<long long>(v)),
                          _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Lanes Product(Lanes a, Lanes b) { return _mm512_maskz_mul_epu32(0xff, a, b); }
inline Lanes High(Lanes a) { return _mm512_maskz_srli_epi64(0xff, a, 32); }
inline Lanes Xor(Lanes a, Lanes b, Lanes c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
inline Lanes Pair(Lanes low, Lanes high) {   // the lower halves as one number
  return _mm512_mask_blend_epi32(0xaaaa, low, _mm512_maskz_slli_epi64(0xff, high, 32));
}
inline void Store(uint16_t* out, Lanes low, Lanes high) {
  const Lanes first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const Lanes second = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi64(low, first, high));
  _mm512_storeu_si512(out + 32, _mm512_permutex2var_epi64(low, second, high));
}
#else
using Lanes = __m256i;
constexpr int kLanes = 4;
inline Lanes All(uint32_t v) { return _mm256_set1_epi64x(v); }
inline Lanes From(uint64_t v) {
  return _mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>(v)),
                          _mm256_setr_epi64x(0, 1, 2, 3));
}
inline Lanes Product(Lanes a, Lanes b) { return _mm256_mul_epu32(a, b); }
inline Lanes High(Lanes a) { return _mm256_srli_epi64(a, 32); }
inline Lanes Xor(Lanes a, Lanes b, Lanes c) {
  return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}
inline Lanes Pair(Lanes low, Lanes high) {
  return _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xaa);
}
inline void Store(uint16_t* out, Lanes low, Lanes high) {
  const Lanes even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
  _mm256_storeu_si256(reinterpret_cast<Lanes*>(out), _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(reinterpret_cast<Lanes*>(out + 16),
                      _mm256_permute2x128_si256(even, odd, 0x31));
}
#endif

// The parts common to all counters.
struct Rounds {
  explicit Rounds(const RandomKey& key) : tensor(All(key.tensor)), rank(All(key.rank)) {
    for (uint32_t round = 0; round < 10; ++round) {
      key0[round] = All(static_cast<uint32_t>(key.step) + round * 0x9E3779B9);
      key1[round] = All(static_cast<uint32_t>(key.step >> 32) + round * 0xBB67AE85);
    }
  }
  Lanes tensor, rank, key0[10], key1[10];
};

// Computes kVectors vectors at once: each round of a vector waits for its previous round.
template <int kVectors>
inline void Draw(const Rounds& rounds, uint64_t index, uint16_t* out) {
  const Lanes multiplier0 = All(0xD2511F53), multiplier1 = All(0xCD9E8D57);
  Lanes c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    c0[v] = From(index + static_cast<uint64_t>(v * kLanes));
    c1[v] = High(c0[v]);
    c2[v] = rounds.tensor;
    c3[v] = rounds.rank;
  }
  for (int round = 0; round < 10; ++round) {
    for (int v = 0; v < kVectors; ++v) {
      const Lanes a = Product(multiplier0, c0[v]), b = Product(multiplier1, c2[v]);
      c0[v] = Xor(High(b), c1[v], rounds.key0[round]);
      c2[v] = Xor(High(a), c3[v], rounds.key1[round]);
      c1[v] = b;
      c3[v] = a;
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    Store(out + v * kLanes * 8, Pair(c0[v], c1[v]), Pair(c2[v], c3[v]));
  }
}

void Fill(const RandomKey& key, uint64_t index, int64_t groups, uint16_t* out) {
  const Rounds rounds(key);
  int64_t i = 0;
  for (; i + 32 <= groups; i += 32) {
    Draw<32 / kLanes>(rounds, index + static_cast<uint64_t>(i), out + i * 8);
  }
  for (; i < groups; i += 8) {
    Draw<8 / kLanes>(rounds, index + static_cast<uint64_t>(i), out + i * 8);
  }
}

}  // namespace

extern const RandomKernels JAXCCOMP_RANDOM_KERNELS;
constinit const RandomKernels JAXCCOMP_RANDOM_KERNELS = {JAXCCOMP_KERNELS_NAME, &Fill};

}  // namespace jaxccomp
