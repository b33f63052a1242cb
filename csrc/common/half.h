// Conversions between float and the 16-bit floating types, one value at a time.
//
// Rounding is to nearest even. NaN stays NaN: it keeps the top bits of its payload and becomes quiet, as with the
// F16C and AVX-512 instructions, so that scalar and vector code give the same bits. Except for subnormal results of a
// double, nothing here depends on whether the thread flushes subnormals (XLA's do).
//
// The functions are static, not inline: this header is compiled into files that have different
// instruction-set flags, and the linker must not share one file's copy with another.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/host_device.h"

namespace jaxccomp {

// Chooses by masks. With ?: the compiler would branch around the floating-point operation of one value, and would not
// vectorise the loop.
JAXCCOMP_HOST_DEVICE static inline uint32_t SelectBits(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

JAXCCOMP_HOST_DEVICE static inline float ToFloat(BFloat16 value) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(value.bits) << 16);
}

JAXCCOMP_HOST_DEVICE static inline BFloat16 ToBFloat16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return {static_cast<uint16_t>(is_nan ? nan : rounded)};
}

// Stochastic rounding: adds `random`, below 2^16, to the 16 bits that bfloat16 drops, and keeps the carry. NaN and
// infinity are as above. A value above the greatest finite bfloat16 becomes that, so no finite value becomes
// infinite.
JAXCCOMP_HOST_DEVICE static inline BFloat16 ToBFloat16(float value, uint32_t random) {
  constexpr uint32_t kInfinite = 0x7f800000, kGreatest = 0x7f7f;
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t up = (magnitude + random) >> 16;
  const uint32_t special = (magnitude >> 16) | SelectBits(magnitude > kInfinite, 0x40, 0);
  const uint32_t finite = SelectBits(up > kGreatest, kGreatest, up);
  const uint32_t result = SelectBits(magnitude >= kInfinite, special, finite);
  return {static_cast<uint16_t>(result | (bits >> 16 & 0x8000))};
}

JAXCCOMP_HOST_DEVICE static inline float ToFloat(Float16 value) {
  const uint32_t magnitude = value.bits & 0x7fff;
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t mantissa = magnitude << 13;
  const uint32_t normal = mantissa + (112u << 23);   // the difference of the exponent biases
  const uint32_t special = (mantissa + (224u << 23)) | (magnitude > 0x7c00 ? 0x400000u : 0u);
  // A subnormal is read as 2^-14 * (1 + fraction), and its leading one is then subtracted.
  const float subnormal =
      __builtin_bit_cast(float, mantissa + (113u << 23)) - __builtin_bit_cast(float, 113u << 23);
  uint32_t bits = SelectBits(magnitude < 0x400, __builtin_bit_cast(uint32_t, subnormal), normal);
  bits = SelectBits(magnitude >= 0x7c00, special, bits);
  return __builtin_bit_cast(float, bits | sign);
}

JAXCCOMP_HOST_DEVICE static inline Float16 ToFloat16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  // One unit in the last place of 0.5f is the smallest subnormal of float16, so that adding 0.5f
  // rounds to a multiple of it.
  const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, shifted) - (126u << 23);
  uint32_t result = SelectBits(magnitude < (113u << 23), subnormal, normal);
  result = SelectBits(magnitude >= (143u << 23), 0x7c00, result);   // 65536 and above
  result = SelectBits(magnitude > (255u << 23), nan, result);
  return {static_cast<uint16_t>(result | sign)};
}

// To float by rounding to odd (an inexact result gets an odd last bit). Rounding this again to a narrower type gives
// the same result as rounding once.
static inline float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  const uint32_t inexact = back != value ? 1 : 0;
  const uint32_t away = __builtin_fabs(back) > __builtin_fabs(value) ? 1 : 0;
  const uint32_t bits = (__builtin_bit_cast(uint32_t, nearest) - away) | inexact;
  return __builtin_bit_cast(float, bits);
}

static inline BFloat16 ToBFloat16(double value) { return ToBFloat16(RoundToOdd(value)); }
static inline Float16 ToFloat16(double value) { return ToFloat16(RoundToOdd(value)); }

}  // namespace jaxccomp
