// The arithmetic of codecs with codes of 2, 4 or 8 bits in blocks (docs/wire_format_lossy.md), for single values. A
// coder has
//
//   kBits, kHeaderBytes, kRandom     bits of a code, header bytes of a block, whether Code needs random bits
//   Encoder, MakeEncoder(greatest, threshold), Code(encoder, bits, random)
//   Decoder, MakeDecoder(header, limit, threshold), Value(decoder, code), Finish(decoder, value)
//
// `greatest` has the bits of the block's greatest magnitude. Only the lowest kBits of Code are used. Finish must be
// applied to the values of a block whose Decoder is `special`.
#pragma once

#include <cstdint>

#include "codec/float_kernels.h"
#include "common/host_device.h"
#include "cuda/kernels/common/values.cuh"

namespace jaxccomp::cuda {

inline constexpr uint32_t kMinScale = 27u << 23;   // 2^-100

// The decoder of codes that are multiplied by a scale. Values beyond the limit are clamped to it.
struct ScaleDecoder {
  float scale;
  float limit;
  bool special;
};

JAXCCOMP_HOST_DEVICE inline ScaleDecoder MakeScaleDecoder(uint32_t scale_bits, float max_code,
                                                          float limit) {
  const float scale = FloatOf(scale_bits);
  return {scale, limit, !(scale * max_code <= limit)};
}

JAXCCOMP_HOST_DEVICE inline uint32_t FinishScaled(const ScaleDecoder& decoder, uint32_t bits) {
  if (IsNaN(BitsOf(decoder.scale))) return kNaN;
  const float value = FloatOf(bits);
  const float below = decoder.limit < value ? decoder.limit : value;
  return BitsOf(-decoder.limit > below ? -decoder.limit : below);
}

// "int8", "int4" and "int2".
template <int bits, bool random>
struct Integer {
  static constexpr int kBits = bits;
  static constexpr int kHeaderBytes = 2;
  static constexpr bool kRandom = random;
  static constexpr int kMaxCode = (1 << (kBits - 1)) - 1;
  // The inverse of a scale near float's maximum would be subnormal: use four times the inverse, and a quarter of the
  // value.
  static constexpr bool kQuarter = kBits == 2;

  struct Encoder {
    uint32_t header;
    uint32_t keep;   // all ones, or 0 if the block is not finite
    float inverse;
  };

  JAXCCOMP_HOST_DEVICE static Encoder MakeEncoder(uint32_t greatest, float) {
    constexpr uint32_t kGreatestScale = 0x7f7f0000;   // the greatest finite bfloat16
    const bool finite = greatest < kInfinity;
    const float exact = FloatOf(finite ? greatest : 0) / static_cast<float>(kMaxCode);
    uint32_t up = (BitsOf(exact) + 0xffff) & 0xffff0000;
    up = up > kMinScale ? up : kMinScale;
    up = up < kGreatestScale ? up : kGreatestScale;
    return {finite ? up >> 16 : kNaN >> 16, finite ? ~0u : 0,
            (kQuarter ? 4.0f : 1.0f) / FloatOf(up)};
  }

  JAXCCOMP_HOST_DEVICE static uint32_t Code(const Encoder& encoder, uint32_t value_bits,
                                            uint32_t drawn) {
    float steps = FloatOf(value_bits & encoder.keep);
    if (kQuarter) steps = steps * 0.25f;
    steps = steps * encoder.inverse;
    // Rounds numbers below 2^22 to nearest even, into the lowest bits.
    if (!kRandom) return BitsOf(steps + 0x1.8p23f);
    const float shift = static_cast<float>(static_cast<int32_t>(drawn)) * 0x1p-16f + 0x1p-17f;
    const float shifted = steps + shift;
    auto code = static_cast<int32_t>(shifted);
    code -= shifted < static_cast<float>(code) ? 1 : 0;
    // Rounding of the product and of the sum may exceed the range by one.
    code = code < kMaxCode ? code : kMaxCode;
    code = code > -kMaxCode ? code : -kMaxCode;
    return static_cast<uint32_t>(code);
  }

  using Decoder = ScaleDecoder;
  JAXCCOMP_HOST_DEVICE static Decoder MakeDecoder(uint32_t header, float limit, float) {
    return MakeScaleDecoder(header << 16, kMaxCode, limit);
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Value(const Decoder& decoder, uint32_t code) {
    // The float 2^23 plus the code plus 2^(kBits - 1).
    constexpr uint32_t kSign = 1u << (kBits - 1);
    const float steps = FloatOf(0x4b000000 | (code ^ kSign)) - (0x1p23f + static_cast<float>(kSign));
    return BitsOf(steps * decoder.scale);
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Finish(const Decoder& decoder, uint32_t value) {
    return FinishScaled(decoder, value);
  }
};

// "fp8_e4m3" and "fp8_e5m2".
template <int mantissa_bits>
struct Float8 {
  static constexpr int kBits = 8;
  static constexpr int kHeaderBytes = 1;
  static constexpr bool kRandom = false;
  static constexpr int kMantissaBits = mantissa_bits;
  static constexpr bool kE4m3 = mantissa_bits == 3;
  static constexpr int kBias = kE4m3 ? 7 : 15;
  static constexpr int kMaxExponent = kE4m3 ? 8 : 15;
  static constexpr float kMaxValue = kE4m3 ? 448.0f : 57344.0f;   // 1.75 * 2^kMaxExponent
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr uint32_t kMinNormal = static_cast<uint32_t>(128 - kBias) << 23;

  struct Encoder {
    uint32_t header;
    uint32_t keep;
    float inverse;
  };

  // The scale is the least power of two for which greatest / scale is at most kMaxValue.
  JAXCCOMP_HOST_DEVICE static Encoder MakeEncoder(uint32_t greatest, float) {
    const bool finite = greatest < kInfinity;
    // The addition carries into the exponent for mantissas above 1.75.
    const auto exponent = static_cast<int32_t>((greatest + 0x1fffff) >> 23);
    int32_t scale = exponent - kMaxExponent;
    scale = scale > 27 ? scale : 27;   // 2^-100
    return {finite ? static_cast<uint32_t>(scale) : 255, finite ? ~0u : 0,
            FloatOf(finite ? static_cast<uint32_t>(254 - scale) << 23 : 0)};
  }

  JAXCCOMP_HOST_DEVICE static uint32_t Code(const Encoder& encoder, uint32_t value_bits, uint32_t) {
    const uint32_t bits = BitsOf(FloatOf(value_bits & encoder.keep) * encoder.inverse);
    const uint32_t magnitude = bits & kMagnitude;
    // Adding a power of two with the code's unit in the last place rounds to nearest even. The sum minus that power
    // has the code's digits; `exponent` gives the code's exponent.
    uint32_t exponent = magnitude & kInfinity;
    exponent = exponent > kMinNormal ? exponent : kMinNormal;
    const uint32_t power = exponent + (static_cast<uint32_t>(kShift) << 23);
    const float rounded = FloatOf(magnitude) + FloatOf(power);
    const uint32_t code = BitsOf(rounded) - power + ((exponent - kMinNormal) >> kShift);
    return code | (bits >> 24 & 0x80);
  }

  using Decoder = ScaleDecoder;
  JAXCCOMP_HOST_DEVICE static Decoder MakeDecoder(uint32_t header, float limit, float) {
    return MakeScaleDecoder(header == 255 ? kNaN : header << 23, kMaxValue, limit);
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Value(const Decoder& decoder, uint32_t code) {
    const uint32_t digits = code & 0x7f;
    // Subnormals have the exponent field 0, which would be one too small.
    const uint32_t raised = (digits << kShift) + kMinNormal;
    const float subnormal = FloatOf(raised) - FloatOf(kMinNormal);
    const bool normal = digits >> kMantissaBits != 0;
    const uint32_t magnitude = normal ? raised - (1u << 23) : BitsOf(subnormal);
    return BitsOf(FloatOf(magnitude | (code & 0x80) << 24) * decoder.scale);
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Finish(const Decoder& decoder, uint32_t value) {
    return FinishScaled(decoder, value);
  }
};

// The decoder of "ternary" and "tbq": two bits select one of four values.
struct PairDecoder {
  uint32_t meanings[4];
  static constexpr bool special = false;
};

JAXCCOMP_HOST_DEVICE inline uint32_t PairValue(const PairDecoder& decoder, uint32_t code) {
  const uint32_t low = code & 2 ? decoder.meanings[2] : decoder.meanings[0];
  const uint32_t high = code & 2 ? decoder.meanings[3] : decoder.meanings[1];
  return code & 1 ? high : low;
}

// 0 below the threshold, else 1 for positive and 3 for negative values.
JAXCCOMP_HOST_DEVICE inline uint32_t SignedCode(uint32_t bits, bool reached) {
  return reached ? 1u | (bits >> 31) << 1 : 0;
}

template <bool random>
struct Ternary {
  static constexpr int kBits = 2;
  static constexpr int kHeaderBytes = 4;
  static constexpr bool kRandom = random;

  struct Encoder {
    uint32_t header;
    float step;        // 0 if all codes are 0
    uint32_t minimum;    // without kRandom: bits of the least magnitude whose code is not 0
  };

  JAXCCOMP_HOST_DEVICE static Encoder MakeEncoder(uint32_t greatest, float) {
    if (greatest < kMinScale) return {0, 0, ~0u};
    if (greatest >= kInfinity) return {kNaN, 0, ~0u};
    return {greatest, FloatOf(greatest), BitsOf(0.5f * FloatOf(greatest)) + 1};
  }

  JAXCCOMP_HOST_DEVICE static uint32_t Code(const Encoder& encoder, uint32_t bits, uint32_t drawn) {
    uint32_t minimum = encoder.minimum;
    if (kRandom) {
      // |x| >= (1 - u) * scale has probability |x| / scale.
      const auto left = static_cast<float>(0xffff - static_cast<int32_t>(drawn));
      const uint32_t of_step = BitsOf((left * 0x1p-16f + 0x1p-17f) * encoder.step);
      minimum = encoder.step > 0 ? of_step : ~0u;
    }
    return SignedCode(bits, (bits & kMagnitude) >= minimum);
  }

  using Decoder = PairDecoder;
  JAXCCOMP_HOST_DEVICE static Decoder MakeDecoder(uint32_t header, float, float) {
    // A NaN scale decodes all values to NaN. Code 2 is never written.
    return {{IsNaN(header) ? header : 0, header, kNaN, header ^ ~kMagnitude}};
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Value(const Decoder& decoder, uint32_t code) {
    return PairValue(decoder, code);
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Finish(const Decoder&, uint32_t value) { return value; }
};

// "tbq".
struct Threshold {
  static constexpr int kBits = 2;
  static constexpr int kHeaderBytes = 0;
  static constexpr bool kRandom = false;

  struct Encoder {
    uint32_t minimum;
  };

  JAXCCOMP_HOST_DEVICE static Encoder MakeEncoder(uint32_t, float threshold) {
    return {BitsOf(threshold)};
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Code(const Encoder& encoder, uint32_t bits, uint32_t) {
    const uint32_t magnitude = bits & kMagnitude;
    return magnitude < kInfinity ? SignedCode(bits, magnitude >= encoder.minimum) : 2;
  }

  using Decoder = PairDecoder;
  JAXCCOMP_HOST_DEVICE static Decoder MakeDecoder(uint32_t, float, float threshold) {
    return {{0, BitsOf(threshold), kNaN, BitsOf(threshold) ^ ~kMagnitude}};
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Value(const Decoder& decoder, uint32_t code) {
    return PairValue(decoder, code);
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Finish(const Decoder&, uint32_t value) { return value; }
};

}  // namespace jaxccomp::cuda
