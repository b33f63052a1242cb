// Cases that the tests of csrc/cuda share on the host and on a GPU: codecs with the specs of their CPU counterparts,
// values, and the comparison of results.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/half.h"
#include "cuda/kernels/fixed_rate/fixed_rate.h"
#include "cuda/kernels/fixed_rate/formats.h"
#include "lossy_codecs.h"

namespace jaxccomp::testing {

struct FixedRateCase {
  std::string spec;
  cuda::FixedRate codec;
};

// Every codec with all values of its options.
inline std::vector<FixedRateCase> FixedRateCases() {
  using cuda::Format;
  std::vector<FixedRateCase> cases = {{"bf16", {Format::kBf16}},
                                      {"bf16:rounding=stochastic", {Format::kBf16, 0, true}},
                                      {"fp16", {Format::kFp16}}};
  for (Format format : {Format::kE4m3, Format::kE5m2, Format::kInt8, Format::kInt4, Format::kInt2,
                        Format::kOneBit, Format::kTernary}) {
    const cuda::FormatRow& row = cuda::RowOf(format);
    const bool rounds = format != Format::kE4m3 && format != Format::kE5m2 &&
                        format != Format::kOneBit;
    for (int64_t block : row.blocks) {
      for (bool stochastic : {false, true}) {
        if (block == 0 || (stochastic && !rounds)) continue;
        std::string spec = std::string(row.name) + ":block=" + std::to_string(block);
        if (rounds) spec += stochastic ? ",rounding=stochastic" : ",rounding=nearest";
        cases.push_back({spec, {format, block, stochastic}});
      }
    }
  }
  for (const char* threshold : {"0.01", "2.5"}) {
    cuda::FixedRate codec = {Format::kTbq};
    codec.threshold = std::strtof(threshold, nullptr);
    cases.push_back({std::string("tbq:threshold=") + threshold, codec});
  }
  return cases;
}

// Converts to `dtype`. Half types are rounded and keep NaN and infinities.
inline Bytes AsDType(DType dtype, const Floats& values) {
  Bytes bytes(values.size() * static_cast<size_t>(SizeBytes(dtype)));
  if (dtype == DType::kFloat32 && !values.empty()) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t raw = dtype == DType::kFloat16 ? ToFloat16(values[i]).bits
                                                  : ToBFloat16(values[i]).bits;
    std::memcpy(bytes.data() + 2 * i, &raw, sizeof(raw));
  }
  return bytes;
}

inline uint32_t FloatBits(DType dtype, const std::byte* values, int64_t i) {
  if (dtype == DType::kFloat32) {
    uint32_t bits;
    std::memcpy(&bits, values + 4 * i, sizeof(bits));
    return bits;
  }
  uint16_t raw;
  std::memcpy(&raw, values + 2 * i, sizeof(raw));
  const float value = dtype == DType::kFloat16 ? ToFloat(Float16{raw}) : ToFloat(BFloat16{raw});
  return __builtin_bit_cast(uint32_t, value);
}

// Values of a chunk: ordinary ones, difficult ones, and NaN and infinities of both signs in every block or in a few.
inline Floats CaseValues(int kind, int64_t count) {
  Floats values = kind == 0 ? Gaussian(count) : kind == 1 ? Tiny(count) : Awkward(count);
  for (int64_t i = 0; i < count; ++i) {
    if (kind == 2 && i % 7 != 3) continue;
    if (kind == 3) values[i] *= 0x1p120f;
    if (kind == 4 && i % 701 == 5) values[i] = i % 2 ? kInfinity : -kNaN;
    if (kind == 4 && i % 701 != 5) values[i] = static_cast<float>(i % 19 - 9) * 1e4f;
  }
  return values;
}
inline constexpr int kValueKinds = 5;

// The index of the first of `count` sums that differs, or -1. The sum of two NaNs may be any NaN.
inline int64_t FirstOtherSum(DType dtype, const Bytes& before, const Bytes& added,
                             const Bytes& expected, const Bytes& actual, int64_t count) {
  const auto is_nan = [&](const Bytes& values, int64_t i) {
    return (FloatBits(dtype, values.data(), i) & 0x7fffffff) > 0x7f800000;
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t size = SizeBytes(dtype);
    if (std::memcmp(&expected[i * size], &actual[i * size], size) == 0) continue;
    if (is_nan(before, i) && is_nan(added, i) && is_nan(actual, i)) continue;
    return i;
  }
  return -1;
}

}  // namespace jaxccomp::testing
