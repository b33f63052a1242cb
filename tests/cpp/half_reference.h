// Slow float16 and bfloat16 by definition: the reference for the fast conversions.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace jaxccomp::testing {

struct HalfFormat {
  int mantissa_bits;   // stored bits
  int exponent_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint16_t infinity() const { return ((1 << exponent_bits) - 1) << mantissa_bits; }
};
inline constexpr HalfFormat kFloat16Format = {10, 5};
inline constexpr HalfFormat kBFloat16Format = {7, 8};

inline double HalfValue(uint16_t bits, HalfFormat f) {
  const int exponent = (bits & 0x7fff) >> f.mantissa_bits;
  const int fraction = bits & ((1 << f.mantissa_bits) - 1);
  double value;
  if (exponent == (1 << f.exponent_bits) - 1) {
    value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                          : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, 1 - f.bias() - f.mantissa_bits);
  } else {
    value = std::ldexp(fraction + (1 << f.mantissa_bits), exponent - f.bias() - f.mantissa_bits);
  }
  return bits & 0x8000 ? -value : value;
}

// The bits of `value` rounded to nearest even; every NaN becomes one quiet NaN.
inline uint16_t HalfBits(double value, HalfFormat f) {
  if (std::isnan(value)) return f.infinity() | (1 << (f.mantissa_bits - 1));
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return sign | f.infinity();
  if (magnitude == 0) return sign;
  int exponent = std::ilogb(magnitude);
  if (exponent > f.bias()) return sign | f.infinity();
  if (exponent < 1 - f.bias()) exponent = 1 - f.bias();
  // In units of the last place. A carry goes into the exponent, up to infinity.
  const auto units = static_cast<uint32_t>(
      std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent)));
  const uint32_t base = static_cast<uint32_t>(exponent + f.bias() - 1) << f.mantissa_bits;
  return static_cast<uint16_t>(sign | (base + units));
}

inline bool IsHalfNan(uint16_t bits, HalfFormat f) { return (bits & 0x7fff) > f.infinity(); }

}  // namespace jaxccomp::testing
