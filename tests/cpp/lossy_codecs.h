// Helpers of the tests of lossy codecs.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "check.h"
#include "codec/registry.h"

namespace jaxccomp::testing {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

inline const Codec& FindCodec(std::string_view spec) { return **LookupCodec(spec); }

inline Bytes EncodeValues(std::string_view spec, DType dtype, const void* values, int64_t count,
                          RandomKey key, int64_t first) {
  static Workspace workspace;
  CodingContext context(workspace);
  context.key = key;
  context.first = first;
  Bytes code(FindCodec(spec).MaxEncodedBytes(dtype, count));
  CHECK_OK(FindCodec(spec).Encode(dtype, values, count, code, context));
  return code;
}

inline Bytes EncodeFloats(std::string_view spec, std::span<const float> values, RandomKey key = {},
                          int64_t first = 0) {
  return EncodeValues(spec, DType::kFloat32, values.data(), static_cast<int64_t>(values.size()),
                      key, first);
}

inline Floats DecodeFloats(std::string_view spec, const Bytes& code, size_t count) {
  static Workspace workspace;
  Floats values(count);
  CHECK_OK(FindCodec(spec).Decode(DType::kFloat32, code, values.data(),
                                  static_cast<int64_t>(count), CodingContext(workspace)));
  return values;
}

inline Floats RoundTrip(std::string_view spec, const Floats& values) {
  return DecodeFloats(spec, EncodeFloats(spec, values), values.size());
}

// Compares bits: NaN equals itself, and zeros with different signs differ.
inline bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline std::string Hex(const Bytes& bytes) {
  std::string text;
  char digits[3];
  for (std::byte b : bytes) {
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned>(b));
    text += digits;
  }
  return text;
}

inline Floats Gaussian(int64_t count, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  Floats values(count);
  for (float& v : values) v = normal(random);
  return values;
}

// Difficult values: all magnitudes including subnormals, ties, zeros, and rarely NaN or infinities.
inline Floats Awkward(int64_t count, uint32_t seed = 1) {
  std::mt19937 random(seed);
  Floats values = Gaussian(count, seed);
  for (float& v : values) {
    const uint32_t bits = static_cast<uint32_t>(random());
    switch (random() % 8) {
      case 0: std::memcpy(&v, &bits, sizeof(v)); break;
      case 1: v = 0.5f * static_cast<float>(static_cast<int>(bits % 33) - 16); break;
      case 2: v = bits % 2 ? 0.0f : -0.0f; break;
      case 3: v = static_cast<float>(bits % 64) * 0x1p-130f; break;
      default: break;
    }
  }
  return values;
}

// Values around the smallest scales, including subnormals.
inline Floats Tiny(int64_t count) {
  Floats values = Gaussian(count);
  for (int64_t i = 0; i < count; ++i) values[i] *= i % 3 == 0 ? 0x1p-122f : 0x1p-95f;
  return values;
}

// Flushes subnormals on this thread while it lives, as XLA's threads do; only on
// processors that support it.
class FlushSubnormals {
 public:
#if defined(__SSE2__)
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  const unsigned before_;
#endif
};

// Checks that `spec` encodes values in one piece and in two, cut at multiples of `block`, so that
// both decode to the same values.
inline void CheckCutting(std::string_view spec, int64_t block) {
  const RandomKey key = {5, 6, 7};
  const Floats values = Gaussian(4 * block + 3);
  const Floats whole = DecodeFloats(spec, EncodeFloats(spec, values, key, 1001), values.size());
  for (int64_t cut : {block, 3 * block}) {
    const std::span<const float> all(values);
    const auto head = all.first(cut), tail = all.subspan(cut);
    Floats joined = DecodeFloats(spec, EncodeFloats(spec, head, key, 1001), head.size());
    const Floats rest = DecodeFloats(spec, EncodeFloats(spec, tail, key, 1001 + cut), tail.size());
    joined.insert(joined.end(), rest.begin(), rest.end());
    CHECK(joined == whole);
  }
}

// The same key gives the same bytes; other keys give others.
inline void CheckKeys(std::string_view spec) {
  const Floats values = Gaussian(1000);
  const Bytes code = EncodeFloats(spec, values, {1, 2, 3}, 4);
  CHECK(code == EncodeFloats(spec, values, {1, 2, 3}, 4));
  for (const RandomKey& key : {RandomKey{2, 2, 3}, RandomKey{1, 3, 3}, RandomKey{1, 2, 4},
                               RandomKey{1 + (uint64_t{1} << 32), 2, 3}}) {
    CHECK(code != EncodeFloats(spec, values, key, 4));
  }
  CHECK(code != EncodeFloats(spec, values, {1, 2, 3}, 5));
}

// The mean over many keys is the value. `step` is the largest rounding error. The mean's standard
// deviation is at most step / (2 * sqrt(keys)), and five of them are allowed.
inline void CheckUnbiased(std::string_view spec, const Floats& values, double step) {
  constexpr int kKeys = 4000;
  std::vector<double> sums(values.size());
  for (uint64_t k = 0; k < kKeys; ++k) {
    const Floats decoded = DecodeFloats(spec, EncodeFloats(spec, values, {k, 1, 0}), values.size());
    for (size_t i = 0; i < values.size(); ++i) sums[i] += decoded[i];
  }
  const double allowed = 5 * 0.5 * step / std::sqrt(kKeys);
  for (size_t i = 0; i < values.size(); ++i) {
    if (!CHECK(std::fabs(sums[i] / kKeys - values[i]) <= allowed)) return;
  }
}

// Encoded bytes and decoded values do not depend on flushing of subnormals.
inline void CheckFlushing(std::string_view spec) {
  for (int64_t count : {31, 256, 4099}) {
    for (const Floats& values : {Awkward(count, 3), Tiny(count)}) {
      std::vector<double> doubles(values.begin(), values.end());
      for (double& x : doubles) x *= 1 + 0x1p-30;
      const auto encode_doubles = [&] {
        return EncodeValues(spec, DType::kFloat64, doubles.data(), count, {1, 2, 3}, 0);
      };
      const Bytes code = EncodeFloats(spec, values, {1, 2, 3}), wide_code = encode_doubles();
      const Floats decoded = DecodeFloats(spec, code, values.size());
      Bytes flushed_code, flushed_wide_code;
      Floats flushed;
      {
        const FlushSubnormals flush;
        flushed_code = EncodeFloats(spec, values, {1, 2, 3});
        flushed_wide_code = encode_doubles();
        flushed = DecodeFloats(spec, code, values.size());
      }
      CHECK(code == flushed_code);
      CHECK(wide_code == flushed_wide_code);
      CHECK(SameBits(decoded, flushed));
    }
  }
}

}  // namespace jaxccomp::testing
