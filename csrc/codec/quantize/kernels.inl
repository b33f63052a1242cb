// The body of kernels_generic.cc, kernels_avx2.cc and kernels_avx512.cc, each compiled with its own
// instruction-set flags. The loops are written for the compiler to vectorise (-O3).
//
// Everything is in an unnamed namespace and calls nothing of the standard library, so that the linker
// cannot use a function compiled for a newer processor on an older one.
//
// Results do not depend on whether the thread flushes subnormals (XLA's do): even with the smallest scale,
// subnormals round to 0.
//
// Before including it, define JAXCCOMP_KERNELS (the variable to define) and JAXCCOMP_KERNELS_NAME.
#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "codec/float_kernels.h"
#include "codec/quantize/kernels.h"

namespace jaxccomp::quantize {
namespace {

// Adding this to a float below 2^22 in magnitude leaves the float, rounded to nearest even, in the lowest
// bits.
constexpr float kRounder = 0x1.8p23f;

// The number of blocks whose scales are computed together.
constexpr int kGroup = 16;

// Scales of a group of blocks.
struct Scales {
  uint32_t greatest[kGroup];   // bits of the greatest magnitude
  uint32_t encoded[kGroup];    // the scale as stored
  uint32_t keep[kGroup];       // all ones; 0 if the block has NaN or infinity
  float inverse[kGroup];       // the factor of values
};

#if defined(__AVX512F__)
#include "codec/quantize/avx512.inl"
#endif

// Sets scales->greatest of `blocks` blocks, and 0 for the group's other blocks.
template <int64_t kBlock>
inline void FindGreatest(const Bits* values, int blocks, Scales* scales) {
#if defined(__AVX512F__)
  if (blocks == kGroup) {
    __m512i maximum[kGroup];
    for (int b = 0; b < kGroup; ++b) {
      maximum[b] = Magnitudes(values + b * kBlock);
      for (int64_t i = 16; i < kBlock; i += 16) {
        maximum[b] = _mm512_maskz_max_epi32(kAll, maximum[b], Magnitudes(values + b * kBlock + i));
      }
    }
    _mm512_storeu_si512(scales->greatest, GreatestLanes(maximum));
    return;
  }
#endif
  for (int b = 0; b < kGroup; ++b) {
    scales->greatest[b] = b < blocks ? GreatestMagnitude(values + b * kBlock, kBlock) : 0;
  }
}

// Clamps to +-limit; keeps NaN.
inline float Limited(float value, float limit) {
  value = limit < value ? limit : value;
  return -limit > value ? -limit : value;
}

#include "codec/quantize/fp8.inl"
#include "codec/quantize/integer.inl"

// A Coder is the class of one format: it makes and reads scales and one block's codes.
template <typename Coder, int64_t kBlock>
void Encode(const void* values, int64_t count, const uint16_t* random, std::byte* scales,
            std::byte* codes) {
  auto* x = static_cast<const Bits*>(values);
  constexpr int64_t kCodeBytes = kBlock * Coder::kBits / 8;
  Scales group;
  const int64_t full_blocks = count / kBlock;
  for (int64_t b = 0; b < full_blocks; b += kGroup) {
    const int blocks = full_blocks - b < kGroup ? static_cast<int>(full_blocks - b) : kGroup;
    FindGreatest<kBlock>(x, blocks, &group);
    Coder::MakeScales(&group);
    Coder::StoreScales(group, blocks, scales + b * Coder::kScaleBytes);
    for (int i = 0; i < blocks; ++i) {
      Coder::template EncodeBlock<kBlock>(x, group.keep[i], group.inverse[i], random, codes);
      x += kBlock;
      if constexpr (Coder::kStochastic) random += kBlock;
      codes += kCodeBytes;
    }
  }
  const int64_t rest = count % kBlock;
  if (rest == 0) return;
  group = {};
  group.greatest[0] = GreatestMagnitude(x, rest);
  Coder::MakeScales(&group);
  Coder::StoreScales(group, 1, scales + full_blocks * Coder::kScaleBytes);
  Coder::EncodeRest(x, rest, group.keep[0], group.inverse[0], random, codes);
}

template <typename Coder, int64_t kBlock, bool kAdd>
void Decode(const std::byte* scales, const std::byte* codes, int64_t count, float limit,
            void* values) {
  auto* out = static_cast<Unaligned<float>*>(values);
  constexpr int64_t kCodeBytes = kBlock * Coder::kBits / 8;
  for (; count >= kBlock; count -= kBlock) {
    const float scale = Coder::Scale(scales);
    if (scale * Coder::kMaxValue > limit) {
      Coder::template DecodeRest<kAdd>(codes, kBlock, scale, limit, out);
    } else {
      Coder::template DecodeBlock<kBlock, kAdd>(codes, scale, out);
    }
    scales += Coder::kScaleBytes;
    codes += kCodeBytes;
    out += kBlock;
  }
  if (count > 0) {
    Coder::template DecodeRest<kAdd>(codes, count, Coder::Scale(scales), limit, out);
  }
}

template <typename Coder, int kIndex>
constexpr void AddBlock(Kernels* k) {
  constexpr int64_t kBlock = kBlocks[kIndex];
  if constexpr (Coder::kStochastic) {
    k->encode_stochastic[Coder::kFormat][kIndex] = &Encode<Coder, kBlock>;
  } else {
    k->encode[Coder::kFormat][kIndex] = &Encode<Coder, kBlock>;
    k->decode[Coder::kFormat][kIndex] = &Decode<Coder, kBlock, false>;
    k->decode_add[Coder::kFormat][kIndex] = &Decode<Coder, kBlock, true>;
  }
}

template <typename Coder>
constexpr void Add(Kernels* k) {
  AddBlock<Coder, 0>(k);
  AddBlock<Coder, 1>(k);
  AddBlock<Coder, 2>(k);
  AddBlock<Coder, 3>(k);
}

constexpr Kernels MakeKernels() {
  Kernels k = {};
  k.name = JAXCCOMP_KERNELS_NAME;
  Add<Integer<kInt8, false>>(&k);
  Add<Integer<kInt4, false>>(&k);
  Add<Integer<kInt2, false>>(&k);
  Add<Integer<kInt8, true>>(&k);
  Add<Integer<kInt4, true>>(&k);
  Add<Integer<kInt2, true>>(&k);
  Add<Float8<kE4m3>>(&k);
  Add<Float8<kE5m2>>(&k);
  return k;
}

}  // namespace

extern const Kernels JAXCCOMP_KERNELS;
constinit const Kernels JAXCCOMP_KERNELS = MakeKernels();

}  // namespace jaxccomp::quantize
