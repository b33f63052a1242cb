// The formats fp8_e4m3 and fp8_e5m2. A part of kernels.inl.

template <Format format>
struct Float8 {
  static constexpr Format kFormat = format;
  static constexpr bool kStochastic = false;
  static constexpr int kBits = 8;
  static constexpr int kScaleBytes = 1;
  static constexpr int kMantissaBits = format == kE4m3 ? 3 : 2;
  static constexpr int kBias = format == kE4m3 ? 7 : 15;
  static constexpr int kMaxExponent = format == kE4m3 ? 8 : 15;
  static constexpr float kMaxValue = format == kE4m3 ? 448.0f : 57344.0f;   // 1.75 * 2^kMaxExponent
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr int32_t kMinNormal = (128 - kBias) << 23;   // the least normal number

  // The least power of two that scales the greatest value to at most 1.75 * 2^kMaxExponent.
  static void MakeScales(Scales* s) {
    constexpr int32_t kMinExponent = 27;   // 2^-100
    for (int b = 0; b < kGroup; ++b) {
      const bool finite = s->greatest[b] < kInfinity;
      // A mantissa above 1.75 carries into the exponent.
      const auto exponent = static_cast<int32_t>((s->greatest[b] + 0x1fffff) >> 23);
      int32_t scale = exponent - kMaxExponent;
      scale = scale > kMinExponent ? scale : kMinExponent;
      s->encoded[b] = finite ? static_cast<uint32_t>(scale) : 255;
      s->keep[b] = finite ? ~0u : 0;
      s->inverse[b] = FloatOf(finite ? static_cast<uint32_t>(254 - scale) << 23 : 0);
    }
  }

  static void StoreScales(const Scales& s, int blocks, std::byte* out) {
    auto* to = reinterpret_cast<unsigned char*>(out);
    if (blocks == kGroup) {
      for (int b = 0; b < kGroup; ++b) to[b] = static_cast<unsigned char>(s.encoded[b]);
    } else {
      for (int b = 0; b < blocks; ++b) to[b] = static_cast<unsigned char>(s.encoded[b]);
    }
  }

  static uint32_t Code(uint32_t value_bits, uint32_t keep, float inverse) {
    const uint32_t bits = BitsOf(FloatOf(value_bits & keep) * inverse);
    const auto magnitude = static_cast<int32_t>(bits & kMagnitude);
    // Adding the power of two whose unit in the last place equals the code's rounds to nearest even. The
    // sum minus that power is the code's mantissa; the power gives its exponent.
    int32_t exponent = magnitude & static_cast<int32_t>(kInfinity);
    exponent = exponent > kMinNormal ? exponent : kMinNormal;
    const int32_t power = exponent + (kShift << 23);
    const float rounded = FloatOf(static_cast<uint32_t>(magnitude)) +
                          FloatOf(static_cast<uint32_t>(power));
    const int32_t code = static_cast<int32_t>(BitsOf(rounded)) - power +
                         ((exponent - kMinNormal) >> kShift);
    return static_cast<uint32_t>(code) | ((bits >> 24) & 0x80);
  }

  template <int64_t kBlock>
  static void EncodeBlock(const Bits* x, uint32_t keep, float inverse, const uint16_t*,
                          std::byte* out) {
#if defined(__AVX512F__)
    for (int64_t i = 0; i < kBlock; i += 16) {
      StoreBytes(Float8Vector<Float8>(x + i, keep, inverse), out + i);
    }
#else
    auto* codes = reinterpret_cast<unsigned char*>(out);
    JAXCCOMP_INDEPENDENT
    for (int64_t i = 0; i < kBlock; ++i) {
      codes[i] = static_cast<unsigned char>(Code(x[i], keep, inverse));
    }
#endif
  }

  static void EncodeRest(const Bits* x, int64_t count, uint32_t keep, float inverse,
                         const uint16_t*, std::byte* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(Code(x[i], keep, inverse));
  }

  static float Scale(const std::byte* at) {
    const auto byte = static_cast<uint32_t>(*at);
    return FloatOf(byte == 255 ? kNaN : byte << 23);
  }

  static float Value(uint32_t code, float scale) {
    constexpr auto kMinNormalBits = static_cast<uint32_t>(kMinNormal);
    // A subnormal's exponent field 0 means exponent 1: raise it, then subtract.
    const uint32_t raised = ((code & 0x7f) << kShift) + kMinNormalBits;
    const float subnormal = FloatOf(raised) - FloatOf(kMinNormalBits);
    // Masks instead of ?:, for which the compiler branches around the subtraction and does not vectorise.
    const uint32_t normal = 0u - static_cast<uint32_t>((code & 0x7f) >> kMantissaBits != 0);
    const uint32_t bits = ((raised - (1u << 23)) & normal) | (BitsOf(subnormal) & ~normal);
    return FloatOf(bits | (code & 0x80) << 24) * scale;
  }

  template <int64_t kBlock, bool kAdd>
  static void DecodeBlock(const std::byte* in, float scale, Unaligned<float>* out) {
#if defined(__AVX512F__)
    DecodeFloat8Vectors<Float8, kBlock, kAdd>(in, scale, out);
#else
    auto* codes = reinterpret_cast<const unsigned char*>(in);
    JAXCCOMP_INDEPENDENT
    for (int64_t i = 0; i < kBlock; ++i) Put<kAdd>(out + i, Value(codes[i], scale));
#endif
  }

  template <bool kAdd>
  static void DecodeRest(const std::byte* in, int64_t count, float scale, float limit,
                         Unaligned<float>* out) {
    for (int64_t i = 0; i < count; ++i) {
      Put<kAdd>(out + i, Limited(Value(static_cast<uint32_t>(in[i]), scale), limit));
    }
  }
};
