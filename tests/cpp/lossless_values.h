// Test values for the codec "lossless", for the CPU and for kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "codec/lossless/format.h"

namespace jaxccomp::testing {

enum class Kind {
  kConstant, kNoise, kGaussian, kSpecial, kSmall, kSparse, kChanging, kZeroSegments
};

// A word whose value is close to `value`.
inline uint64_t Pattern(lossless::Layout layout, double value) {
  const auto single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, 4);
  using lossless::Layout;
  if (layout == Layout::kBFloat16) return bits >> 16;
  if (layout == Layout::kFloat32) return bits;
  if (layout == Layout::kFloat16) {
    const uint64_t exponent = std::max<int64_t>((bits >> 23 & 255) - 112, 0);
    return bits >> 31 << 15 | exponent << 10 | (bits >> 13 & 1023);
  }
  uint64_t wide;
  std::memcpy(&wide, &value, 8);
  return layout == Layout::kFloat64 ? wide : static_cast<uint64_t>(int64_t(value * 1000));
}

// Zeros, denormals, infinities, NaN with payload and the largest finite value, of either sign.
inline uint64_t SpecialPattern(lossless::Layout layout, std::mt19937_64& random) {
  using lossless::Layout;
  const int mantissa = layout == Layout::kBFloat16  ? 7
                       : layout == Layout::kFloat16 ? 10
                       : layout == Layout::kFloat64 ? 52
                                                    : 23;
  const int bits = 8 * lossless::Info(layout).word_bytes;
  const uint64_t sign = (random() & 1) << (bits - 1);
  const uint64_t low = random() & ((uint64_t{1} << mantissa) - 1);
  const uint64_t infinity = ((uint64_t{1} << (bits - 1)) - 1) >> mantissa << mantissa;
  switch (random() % 5) {
    case 0: return sign;
    case 1: return sign | low;
    case 2: return sign | infinity;
    case 3: return sign | infinity | low;
    default: return sign | (infinity - 1);
  }
}

inline std::vector<std::byte> LosslessValues(lossless::Layout layout, int64_t words, Kind kind,
                                             uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, 0.02);
  const int64_t word_bytes = lossless::Info(layout).word_bytes;
  std::vector<std::byte> values(static_cast<size_t>(words * word_bytes));
  const uint64_t constant = random();
  for (int64_t i = 0; i < words; ++i) {
    const int64_t at = i * word_bytes;
    uint64_t word = constant;
    switch (kind) {
      case Kind::kConstant: break;
      case Kind::kNoise: word = random(); break;
      case Kind::kGaussian: word = Pattern(layout, normal(random)); break;
      case Kind::kSpecial: word = SpecialPattern(layout, random); break;
      case Kind::kSmall: word = random() % 5; break;
      case Kind::kSparse: word = random() % 50 == 0 ? random() & 3 : 0; break;
      // The blocks of a segment differ, so a sample of the segment does not describe them.
      case Kind::kChanging:
        word = at / 5000 % 3 == 0   ? random()
               : at / 5000 % 3 == 1 ? 0
                                    : Pattern(layout, normal(random));
        break;
      case Kind::kZeroSegments:
        word = i / lossless::kSegmentWords % 2 == 0 ? 0 : Pattern(layout, normal(random));
        break;
    }
    for (int64_t b = 0; b < word_bytes; ++b) values[at + b] = static_cast<std::byte>(word >> 8 * b);
  }
  return values;
}

}  // namespace jaxccomp::testing
