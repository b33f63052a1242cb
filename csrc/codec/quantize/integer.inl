// The formats int8, int4 and int2. A part of kernels.inl.

template <Format format, bool stochastic>
struct Integer {
  static constexpr Format kFormat = format;
  static constexpr bool kStochastic = stochastic;
  static constexpr int kBits = quantize::kBits[format];
  static constexpr int kScaleBytes = quantize::kScaleBytes[format];
  static constexpr int kParts = 8 / kBits;           // codes of a byte
  static constexpr int kMostCode = (1 << (kBits - 1)) - 1;
  static constexpr float kMost = kMostCode;
  static constexpr uint32_t kMask = (1u << kBits) - 1;
  // The inverse of a scale near float's greatest value would be subnormal: it is taken four times
  // as large, and values a quarter.
  static constexpr bool kQuarter = kBits == 2;

  static void MakeScales(Scales* s) {
    constexpr int32_t kLeast = 27 << 23;           // 2^-100
    constexpr int32_t kGreatest = 0x7f7f0000;      // as bfloat16 has it
    for (int b = 0; b < kGroup; ++b) {
      const bool finite = s->greatest[b] < kInfinity;
      const uint32_t kept = finite ? s->greatest[b] : 0;
      const float exact = FloatOf(kept) / kMost;
      auto up = static_cast<int32_t>((BitsOf(exact) + 0xffff) & 0xffff0000);
      up = up > kLeast ? up : kLeast;
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

  // Of one value; only the lowest kBits count.
  static uint32_t Code(uint32_t bits, uint32_t keep, float inverse, uint16_t random) {
    float steps = FloatOf(bits & keep);
    if constexpr (kQuarter) steps = steps * 0.25f;
    steps = steps * inverse;
    if constexpr (!stochastic) return BitsOf(steps + kRounder);
    const float shift = static_cast<float>(static_cast<int32_t>(random)) * 0x1p-16f + 0x1p-17f;
    const float shifted = steps + shift;
    auto code = static_cast<int32_t>(shifted);
    code -= shifted < static_cast<float>(code) ? 1 : 0;
    // Roundings of the product and of the sum may lead one too far.
    code = code < kMostCode ? code : kMostCode;
    code = code > -kMostCode ? code : -kMostCode;
    return static_cast<uint32_t>(code);
  }

  template <int64_t kBlock>
  static void EncodeBlock(const Bits* x, uint32_t keep, float inverse, const uint16_t* random,
                          std::byte* out) {
#if defined(__AVX512F__)
    EncodeVectors<Integer, kBlock>(x, keep, inverse, random, out);
#else
    constexpr int64_t kBytes = kBlock / kParts;
    auto* codes = reinterpret_cast<unsigned char*>(out);
    JAXCCOMP_INDEPENDENT
    for (int64_t i = 0; i < kBytes; ++i) {
      uint32_t byte = 0;
      for (int p = 0; p < kParts; ++p) {
        const int64_t at = i + p * kBytes;
        const uint32_t code = Code(x[at], keep, inverse, stochastic ? random[at] : 0);
        byte |= (p + 1 < kParts ? code & kMask : code) << (p * kBits);
      }
      codes[i] = static_cast<unsigned char>(byte);
    }
#endif
  }

  // A block of fewer values.
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

  // The signed code at place `part` of a byte.
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
    constexpr int64_t kBytes = kBlock / kParts;
    auto* codes = reinterpret_cast<const unsigned char*>(in);
    for (int p = 0; p < kParts; ++p) {
      JAXCCOMP_INDEPENDENT
      for (int64_t i = 0; i < kBytes; ++i) {
        Put<kAdd>(out + p * kBytes + i, Value(codes[i], p, scale));
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
