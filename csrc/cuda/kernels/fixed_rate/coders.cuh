// The arithmetic of the codecs that pack codes of 2, 4 or 8 bits in blocks
// (docs/wire_format_lossy.md), value by value. A coder has
//
//   kBits, kHeaderBytes, kRandom     of a code; of a block; whether Code needs random bits
//   Encoder, MakeEncoder(greatest, threshold), Code(encoder, bits, random)
//   Decoder, MakeDecoder(header, limit, threshold), Value(decoder, code), Finish(decoder, value)
//
// where `greatest` are the bits of the block's greatest magnitude, only the lowest kBits of Code
// count, and Finish is for the values of a block whose Decoder is `special`.
#pragma once

#include <cstdint>

#include "codec/float_kernels.h"
#include "common/host_device.h"
#include "cuda/kernels/common/values.cuh"

namespace jaxccomp::cuda {

inline constexpr uint32_t kLeastScale = 27u << 23;   // 2^-100

// What coders that multiply by a scale share. A value that would be finite and greater than the
// limit becomes the limit.
struct ScaleDecoder {
  float scale;
  float limit;
  bool special;
};

JAXCCOMP_HOST_DEVICE inline ScaleDecoder MakeScaleDecoder(uint32_t scale_bits, float most_code,
                                                          float limit) {
  const float scale = FloatOf(scale_bits);
  return {scale, limit, !(scale * most_code <= limit)};
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
  static constexpr int kMostCode = (1 << (kBits - 1)) - 1;
  // The inverse of a scale near float's greatest value would be subnormal: it is taken four times
  // as large, and values a quarter.
  static constexpr bool kQuarter = kBits == 2;

  struct Encoder {
    uint32_t header;
    uint32_t keep;   // all ones, or 0 where the block is not finite
    float inverse;
  };

  JAXCCOMP_HOST_DEVICE static Encoder MakeEncoder(uint32_t greatest, float) {
    constexpr uint32_t kGreatestScale = 0x7f7f0000;   // as bfloat16 has it
    const bool finite = greatest < kInfinity;
    const float exact = FloatOf(finite ? greatest : 0) / static_cast<float>(kMostCode);
    uint32_t up = (BitsOf(exact) + 0xffff) & 0xffff0000;
    up = up > kLeastScale ? up : kLeastScale;
    up = up < kGreatestScale ? up : kGreatestScale;
    return {finite ? up >> 16 : kNaN >> 16, finite ? ~0u : 0,
            (kQuarter ? 4.0f : 1.0f) / FloatOf(up)};
  }

  JAXCCOMP_HOST_DEVICE static uint32_t Code(const Encoder& encoder, uint32_t value_bits,
                                            uint32_t drawn) {
    float steps = FloatOf(value_bits & encoder.keep);
    if (kQuarter) steps = steps * 0.25f;
    steps = steps * encoder.inverse;
    // Leaves what is below 2^22 rounded to nearest even in the lowest bits.
    if (!kRandom) return BitsOf(steps + 0x1.8p23f);
    const float shift = static_cast<float>(static_cast<int32_t>(drawn)) * 0x1p-16f + 0x1p-17f;
    const float shifted = steps + shift;
    auto code = static_cast<int32_t>(shifted);
    code -= shifted < static_cast<float>(code) ? 1 : 0;
    // Roundings of the product and of the sum may lead one too far.
    code = code < kMostCode ? code : kMostCode;
    code = code > -kMostCode ? code : -kMostCode;
    return static_cast<uint32_t>(code);
  }

  using Decoder = ScaleDecoder;
  JAXCCOMP_HOST_DEVICE static Decoder MakeDecoder(uint32_t header, float limit, float) {
    return MakeScaleDecoder(header << 16, kMostCode, limit);
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Value(const Decoder& decoder, uint32_t code) {
    // The code plus 2^(kBits - 1), in the lowest bits of 2^23.
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
  static constexpr int kMostExponent = kE4m3 ? 8 : 15;
  static constexpr float kMost = kE4m3 ? 448.0f : 57344.0f;   // 1.75 * 2^kMostExponent
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr uint32_t kLeastNormal = static_cast<uint32_t>(128 - kBias) << 23;

  struct Encoder {
    uint32_t header;
    uint32_t keep;
    float inverse;
  };

  // The least power of two by which the greatest value comes to at most kMost.
  JAXCCOMP_HOST_DEVICE static Encoder MakeEncoder(uint32_t greatest, float) {
    const bool finite = greatest < kInfinity;
    // Adding to a mantissa above that of 1.75 carries into the exponent.
    const auto exponent = static_cast<int32_t>((greatest + 0x1fffff) >> 23);
    int32_t scale = exponent - kMostExponent;
    scale = scale > 27 ? scale : 27;   // 2^-100
    return {finite ? static_cast<uint32_t>(scale) : 255, finite ? ~0u : 0,
            FloatOf(finite ? static_cast<uint32_t>(254 - scale) << 23 : 0)};
  }

  JAXCCOMP_HOST_DEVICE static uint32_t Code(const Encoder& encoder, uint32_t value_bits, uint32_t) {
    const uint32_t bits = BitsOf(FloatOf(value_bits & encoder.keep) * encoder.inverse);
    const uint32_t magnitude = bits & kMagnitude;
    // Adding a power of two whose last place is worth that of the code rounds to nearest even; the
    // digits are then what was added, and the exponent says which power that was.
    uint32_t exponent = magnitude & kInfinity;
    exponent = exponent > kLeastNormal ? exponent : kLeastNormal;
    const uint32_t power = exponent + (static_cast<uint32_t>(kShift) << 23);
    const float rounded = FloatOf(magnitude) + FloatOf(power);
    const uint32_t code = BitsOf(rounded) - power + ((exponent - kLeastNormal) >> kShift);
    return code | (bits >> 24 & 0x80);
  }

  using Decoder = ScaleDecoder;
  JAXCCOMP_HOST_DEVICE static Decoder MakeDecoder(uint32_t header, float limit, float) {
    return MakeScaleDecoder(header == 255 ? kNaN : header << 23, kMost, limit);
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Value(const Decoder& decoder, uint32_t code) {
    const uint32_t digits = code & 0x7f;
    // The exponent 0 of subnormals would be one too small.
    const uint32_t raised = (digits << kShift) + kLeastNormal;
    const float subnormal = FloatOf(raised) - FloatOf(kLeastNormal);
    const bool normal = digits >> kMantissaBits != 0;
    const uint32_t magnitude = normal ? raised - (1u << 23) : BitsOf(subnormal);
    return BitsOf(FloatOf(magnitude | (code & 0x80) << 24) * decoder.scale);
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Finish(const Decoder& decoder, uint32_t value) {
    return FinishScaled(decoder, value);
  }
};

// Two bits that choose among four meanings: what "ternary" and "tbq" share.
struct PairDecoder {
  uint32_t meanings[4];
  static constexpr bool special = false;
};

JAXCCOMP_HOST_DEVICE inline uint32_t PairValue(const PairDecoder& decoder, uint32_t code) {
  const uint32_t low = code & 2 ? decoder.meanings[2] : decoder.meanings[0];
  const uint32_t high = code & 2 ? decoder.meanings[3] : decoder.meanings[1];
  return code & 1 ? high : low;
}

// 0 where the threshold is not reached, else 1, or 3 with a sign.
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
    float step;        // 0 where all codes are
    uint32_t least;    // bits of the least magnitude that is not coded as 0, when nearest
  };

  JAXCCOMP_HOST_DEVICE static Encoder MakeEncoder(uint32_t greatest, float) {
    if (greatest < kLeastScale) return {0, 0, ~0u};
    if (greatest >= kInfinity) return {kNaN, 0, ~0u};
    return {greatest, FloatOf(greatest), BitsOf(0.5f * FloatOf(greatest)) + 1};
  }

  JAXCCOMP_HOST_DEVICE static uint32_t Code(const Encoder& encoder, uint32_t bits, uint32_t drawn) {
    uint32_t least = encoder.least;
    if (kRandom) {
      // With the chance |x| / scale, |x| is at least (1 - u) * scale.
      const auto left = static_cast<float>(0xffff - static_cast<int32_t>(drawn));
      const uint32_t of_step = BitsOf((left * 0x1p-16f + 0x1p-17f) * encoder.step);
      least = encoder.step > 0 ? of_step : ~0u;
    }
    return SignedCode(bits, (bits & kMagnitude) >= least);
  }

  using Decoder = PairDecoder;
  JAXCCOMP_HOST_DEVICE static Decoder MakeDecoder(uint32_t header, float, float) {
    // A scale of NaN makes NaN of all; code 2 is never written.
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
    uint32_t least;
  };

  JAXCCOMP_HOST_DEVICE static Encoder MakeEncoder(uint32_t, float threshold) {
    return {BitsOf(threshold)};
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Code(const Encoder& encoder, uint32_t bits, uint32_t) {
    const uint32_t magnitude = bits & kMagnitude;
    return magnitude < kInfinity ? SignedCode(bits, magnitude >= encoder.least) : 2;
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
