// The formats int8, int4 and int2. A part of kernels.inl.

using Word = Unaligned<uint64_t>;

// Stores or adds the eight signed bytes of `codes`, times the scale.
template <bool kAdd>
inline void PutEight(Unaligned<float>* to, uint64_t codes, float scale) {
#if defined(__AVX2__)
  const __m128i bytes = _mm_cvtsi64_si128(static_cast<int64_t>(codes));
  __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                               _mm256_set1_ps(scale));
  auto* out = reinterpret_cast<float*>(to);
  if constexpr (kAdd) value = _mm256_add_ps(_mm256_loadu_ps(out), value);
  _mm256_storeu_ps(out, value);
#else
  signed char bytes[8];
  *reinterpret_cast<Word*>(bytes) = codes;
  for (int i = 0; i < 8; ++i) Put<kAdd>(to + i, static_cast<float>(bytes[i]) * scale);
#endif
}

template <Format format, bool stochastic>
struct Integer {
  static constexpr Format kFormat = format;
  static constexpr bool kStochastic = stochastic;
  static constexpr int kBits = quantize::kBits[format];
  static constexpr int kScaleBytes = quantize::kScaleBytes[format];
  static constexpr int kParts = 8 / kBits;           // codes in a byte
  static constexpr int kMaxCode = (1 << (kBits - 1)) - 1;
  static constexpr float kMaxValue = kMaxCode;
  static constexpr uint32_t kMask = (1u << kBits) - 1;
  static constexpr uint64_t kOnes = 0x0101010101010101;
  // The inverse of a scale near float's greatest value would be subnormal: use four times the inverse and
  // a quarter of the values.
  static constexpr bool kQuarter = kBits == 2;

  static void MakeScales(Scales* s) {
    constexpr int32_t kMinScale = 27 << 23;           // 2^-100
    constexpr int32_t kGreatest = 0x7f7f0000;      // the greatest bfloat16
    for (int b = 0; b < kGroup; ++b) {
      const bool finite = s->greatest[b] < kInfinity;
      const uint32_t kept = finite ? s->greatest[b] : 0;
      const float exact = FloatOf(kept) / kMaxValue;
      auto up = static_cast<int32_t>((BitsOf(exact) + 0xffff) & 0xffff0000);
      up = up > kMinScale ? up : kMinScale;
      up = up < kGreatest ? up : kGreatest;
      s->encoded[b] = finite ? static_cast<uint32_t>(up) >> 16 : 0x7fc0;
      s->keep[b] = finite ? ~0u : 0;
      s->inverse[b] = (kQuarter ? 4.0f : 1.0f) / FloatOf(static_cast<uint32_t>(up));
    }
  }

  static void StoreScales(const Scales& s, int blocks, std::byte* out) {
    auto* to = reinterpret_cast<Unaligned<uint16_t>*>(out);
    if (blocks == kGroup) {
      for (int b = 0; b < kGroup; ++b) to[b] = static_cast<uint16_t>(s.encoded[b]);
    } else {
      for (int b = 0; b < blocks; ++b) to[b] = static_cast<uint16_t>(s.encoded[b]);
    }
  }

  // The code of one value, in the lowest kBits; higher bits are undefined.
  static uint32_t Code(uint32_t bits, uint32_t keep, float inverse, uint16_t random) {
    float steps = FloatOf(bits & keep);
    if constexpr (kQuarter) steps = steps * 0.25f;
    steps = steps * inverse;
    if constexpr (!stochastic) return BitsOf(steps + kRounder);
    const float shift = static_cast<float>(static_cast<int32_t>(random)) * 0x1p-16f + 0x1p-17f;
    const float shifted = steps + shift;
    auto code = static_cast<int32_t>(shifted);
    code -= shifted < static_cast<float>(code) ? 1 : 0;
    // Rounding of the product and the sum may exceed the greatest code by one.
    code = code < kMaxCode ? code : kMaxCode;
    code = code > -kMaxCode ? code : -kMaxCode;
    return static_cast<uint32_t>(code);
  }

  template <int64_t kBlock>
  static void EncodeBlock(const Bits* x, uint32_t keep, float inverse, const uint16_t* random,
                          std::byte* out) {
#if defined(__AVX512F__)
    EncodeVectors<Integer, kBlock>(x, keep, inverse, random, out);
#else
    unsigned char codes[kBlock];
    JAXCCOMP_INDEPENDENT
    for (int64_t i = 0; i < kBlock; ++i) {
      codes[i] = static_cast<unsigned char>(Code(x[i], keep, inverse, stochastic ? random[i] : 0));
    }
    // Eight bytes at a time: shifted codes stay within their byte.
    constexpr int64_t kBytes = kBlock / kParts;
    for (int64_t i = 0; i < kBytes; i += 8) {
      uint64_t bytes = 0;
      for (int p = 0; p < kParts; ++p) {
        const uint64_t some = *reinterpret_cast<const Word*>(codes + i + p * kBytes);
        bytes |= (some & (kOnes * kMask)) << (p * kBits);
      }
      *reinterpret_cast<Word*>(out + i) = bytes;
    }
#endif
  }

  // The last, shorter block.
  static void EncodeRest(const Bits* x, int64_t count, uint32_t keep, float inverse,
                         const uint16_t* random, std::byte* out) {
    const int64_t bytes = (count + kParts - 1) / kParts;
    for (int64_t i = 0; i < bytes; ++i) {
      uint32_t byte = 0;
      for (int p = 0; p < kParts; ++p) {
        const int64_t at = i + p * bytes;
        if (at >= count) break;
        byte |= (Code(x[at], keep, inverse, stochastic ? random[at] : 0) & kMask) << (p * kBits);
      }
      out[i] = static_cast<std::byte>(byte);
    }
  }

  static float Scale(const std::byte* at) {
    return FloatOf(static_cast<uint32_t>(*reinterpret_cast<const Unaligned<uint16_t>*>(at)) << 16);
  }

  // The signed code number `part` of a byte, times the scale.
  static float Value(uint32_t byte, int part, float scale) {
    const uint32_t top = byte << (32 - kBits * (part + 1));
    return static_cast<float>(static_cast<int32_t>(top) >> (32 - kBits)) * scale;
  }

  template <int64_t kBlock, bool kAdd>
  static void DecodeBlock(const std::byte* in, float scale, Unaligned<float>* out) {
#if defined(__AVX512F__)
    if constexpr (kBits == 8) {
      DecodeInt8Vectors<kBlock, kAdd>(in, scale, out);
    } else {
      DecodeSmallVectors<Integer, kBlock, kAdd>(in, scale, out);
    }
#else
    if constexpr (kBits == 8) {
      auto* codes = reinterpret_cast<const signed char*>(in);
      JAXCCOMP_INDEPENDENT
      for (int64_t i = 0; i < kBlock; ++i) Put<kAdd>(out + i, static_cast<float>(codes[i]) * scale);
      return;
    }
    // Codes are moved to the highest bits of a byte; the smaller scale compensates.
    const float shifted = scale * (1.0f / static_cast<float>(1 << (8 - kBits)));
    constexpr int64_t kBytes = kBlock / kParts;
    for (int64_t i = 0; i < kBytes; i += 8) {
      const uint64_t bytes = *reinterpret_cast<const Word*>(in + i);
      for (int p = 0; p < kParts; ++p) {
        const uint64_t codes = (bytes >> (p * kBits) & (kOnes * kMask)) << (8 - kBits);
        PutEight<kAdd>(out + i + p * kBytes, codes, shifted);
      }
    }
#endif
  }

  template <bool kAdd>
  static void DecodeRest(const std::byte* in, int64_t count, float scale, float limit,
                         Unaligned<float>* out) {
    const int64_t bytes = (count + kParts - 1) / kParts;
    for (int64_t i = 0; i < count; ++i) {
      const auto byte = static_cast<uint32_t>(in[i % bytes]);
      Put<kAdd>(out + i, Limited(Value(byte, static_cast<int>(i / bytes), scale), limit));
    }
  }
};
