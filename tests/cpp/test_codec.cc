// Codecs: what every codec must do, and what "bf16" does with particular values.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "codec/codec.h"
#include "half_reference.h"

namespace jaxccomp {
namespace {

constexpr int64_t kCounts[] = {0, 1, 7, 64, 1000, 4097};

const Codec& Find(std::string_view name) { return **LookupCodec(name); }

// Finite values whose bytes look random; `count` of `dtype`, whatever it is.
std::vector<std::byte> SomeBytes(DType dtype, int64_t count) {
  std::vector<std::byte> bytes(count * SizeBytes(dtype));
  uint32_t state = 1;
  for (auto& b : bytes) b = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
  for (int64_t i = 0; i < count; ++i) {
    const double value = std::ldexp(i % 1000 + 0.37, static_cast<int>(i % 60) - 30);
    const auto single = static_cast<float>(i % 2 ? -value : value);
    if (dtype == DType::kFloat32) std::memcpy(&bytes[i * 4], &single, 4);
    if (dtype == DType::kFloat64) std::memcpy(&bytes[i * 8], &value, 8);
  }
  return bytes;
}

double RealAt(DType dtype, const std::vector<std::byte>& bytes, int64_t i) {
  if (dtype == DType::kFloat64) {
    double v;
    std::memcpy(&v, &bytes[i * 8], 8);
    return v;
  }
  float v;
  std::memcpy(&v, &bytes[i * 4], 4);
  return v;
}

std::string Quoted(std::string_view text) {
  std::string quoted(text.size() + 2, '\'');
  quoted.replace(1, text.size(), text);
  return quoted;
}

TEST(codec_lookup) {
  for (const CodecTraits& row : CodecTable()) {
    auto found = LookupCodec(row.name);
    if (!CHECK_OK(found)) continue;
    CHECK_EQ((*found)->traits().name, row.name);
    CHECK(!row.description.empty());
    CHECK(row.lossless ? row.relative_error == 0 : row.relative_error > 0);
  }
  CHECK(LookupCodec("raw").ok() && LookupCodec("bf16").ok());
  for (std::string_view wrong : {"zip", "", "BF16", "none", "bf16 "}) {
    auto found = LookupCodec(wrong);
    CHECK_EQ(found.status().code(), Code::kInvalidArgument);
    const std::string& message = found.status().message();
    CHECK(message.find(Quoted(wrong)) != std::string::npos);
    for (const CodecTraits& row : CodecTable()) {
      CHECK(message.find(Quoted(row.name)) != std::string::npos);
    }
  }
  CHECK_EQ(LookupCodec("zip").status().message().substr(0, 39),
           "unknown codec 'zip': valid are 'raw', '");
}

// Every codec, dtype and size: the size is as announced, the error within the bound, lossless
// means the same bytes, encoding is repeatable, and addresses need no alignment.
TEST(codec_round_trip) {
  for (const CodecTraits& traits : CodecTable()) {
    const Codec& codec = Find(traits.name);
    for (int d = 0; d < kDTypeCount; ++d) {
      const auto dtype = static_cast<DType>(d);
      if (!codec.Supports(dtype)) continue;
      for (int64_t count : kCounts) {
        const std::vector<std::byte> source = SomeBytes(dtype, count);
        const int64_t most = codec.MaxEncodedBytes(dtype, count);
        std::vector<std::byte> encoded(most + 8, std::byte{0x5a}), again(most);
        auto size = codec.Encode(dtype, source.data(), count,
                                 {encoded.data() + 1, static_cast<size_t>(most)});
        if (!CHECK_OK(size)) continue;
        CHECK(traits.fixed_rate ? *size == most : *size <= most);
        const int64_t touched = traits.fixed_rate ? *size : most;
        for (int64_t i = touched + 1; i < most + 8; ++i) CHECK(encoded[i] == std::byte{0x5a});
        CHECK_OK(codec.Encode(dtype, source.data(), count, again));
        CHECK(most == 0 || std::memcmp(again.data(), encoded.data() + 1, *size) == 0);

        std::vector<std::byte> decoded(source.size() + 1, std::byte{0x5a});
        std::byte* const out = decoded.data() + 1;
        CHECK_OK(codec.Decode(dtype, {encoded.data() + 1, static_cast<size_t>(*size)}, out, count));
        CHECK(decoded[0] == std::byte{0x5a});
        decoded.erase(decoded.begin());
        if (traits.lossless) {
          CHECK(decoded == source);
          continue;
        }
        for (int64_t i = 0; i < count; ++i) {
          const double x = RealAt(dtype, source, i);
          const double error = std::fabs(RealAt(dtype, decoded, i) - x);
          if (!CHECK(error <= traits.relative_error * std::fabs(x))) break;
        }
      }
    }
  }
}

TEST(codec_wrong_lengths) {
  for (const CodecTraits& traits : CodecTable()) {
    const Codec& codec = Find(traits.name);
    for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
      constexpr int64_t kCount = 33;
      const std::vector<std::byte> source = SomeBytes(dtype, kCount);
      std::vector<std::byte> encoded(codec.MaxEncodedBytes(dtype, kCount));
      std::vector<std::byte> decoded(source.size());
      auto size = codec.Encode(dtype, source.data(), kCount, encoded);
      if (!CHECK_OK(size)) continue;
      // Every prefix, and a byte too many.
      encoded.resize(*size + 1);
      for (int64_t n = 0; n <= *size + 1; ++n) {
        const Status status =
            codec.Decode(dtype, {encoded.data(), static_cast<size_t>(n)}, decoded.data(), kCount);
        CHECK_EQ(status.code(), n == *size ? Code::kOk : Code::kDataLoss);
      }
      // A buffer too small to encode into, and impossible counts.
      CHECK_EQ(codec.Encode(dtype, source.data(), kCount, {encoded.data(), 5}).status().code(),
               Code::kInvalidArgument);
      for (int64_t count : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
        CHECK_EQ(codec.Encode(dtype, source.data(), count, encoded).status().code(),
                 Code::kInvalidArgument);
        CHECK(!codec.Decode(dtype, encoded, decoded.data(), count).ok());
      }
    }
  }
}

TEST(codec_raw_moves_every_dtype) {
  for (int d = 0; d < kDTypeCount; ++d) CHECK(Find("raw").Supports(static_cast<DType>(d)));
}

TEST(codec_bf16_supports_wide_floats_only) {
  const Codec& codec = Find("bf16");
  std::byte buffer[64] = {};
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    const bool wide = dtype == DType::kFloat32 || dtype == DType::kFloat64;
    CHECK_EQ(codec.Supports(dtype), wide);
    if (wide) {
      CHECK_EQ(codec.MaxEncodedBytes(dtype, 10), 20);
    } else {
      CHECK_EQ(codec.Encode(dtype, buffer, 2, buffer).status().code(), Code::kUnimplemented);
      CHECK_EQ(codec.Decode(dtype, buffer, buffer, 2).code(), Code::kUnimplemented);
    }
  }
}

template <typename T>
std::vector<uint16_t> Bf16Bits(const std::vector<T>& values, DType dtype) {
  std::vector<uint16_t> bits(values.size());
  CHECK_OK(Find("bf16").Encode(dtype, values.data(), static_cast<int64_t>(values.size()),
                               std::as_writable_bytes(std::span(bits))));
  return bits;
}

TEST(codec_bf16_specials) {
  using FloatLimits = std::numeric_limits<float>;
  const float inf = FloatLimits::infinity();
  // 1 + 2^-8 is a tie and goes to the even 1; 1 + 3 * 2^-8 goes up to 1 + 2^-6.
  const std::vector<float> values = {0.0f, -0.0f, inf, -inf, 1.00390625f, 1.01171875f,
                                     FloatLimits::max(), 0x1.fep127f, FloatLimits::denorm_min()};
  const std::vector<uint16_t> bits = {0x0000, 0x8000, 0x7f80, 0xff80, 0x3f80, 0x3f82,
                                      0x7f80, 0x7f7f, 0x0000};
  CHECK(Bf16Bits(values, DType::kFloat32) == bits);
  CHECK(Bf16Bits(std::vector<double>(values.begin(), values.end()), DType::kFloat64) == bits);

  const std::vector<double> large = {1e39, -1e300, std::numeric_limits<double>::denorm_min(),
                                     // above the tie by less than a float can tell
                                     1.00390625 + 0x1p-40};
  CHECK(Bf16Bits(large, DType::kFloat64) ==
        (std::vector<uint16_t>{0x7f80, 0xff80, 0x0000, 0x3f81}));
}

TEST(codec_bf16_nan_stays_nan) {
  std::vector<float> nans;
  for (uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu}) {
    float value;
    std::memcpy(&value, &bits, 4);
    nans.push_back(value);
  }
  const Codec& codec = Find("bf16");
  const std::vector<uint16_t> bits = Bf16Bits(nans, DType::kFloat32);
  std::vector<float> single(nans.size());
  std::vector<double> wide(nans.size());
  const auto encoded = std::as_bytes(std::span(bits));
  CHECK_OK(codec.Decode(DType::kFloat32, encoded, single.data(), 5));
  CHECK_OK(codec.Decode(DType::kFloat64, encoded, wide.data(), 5));
  for (size_t i = 0; i < nans.size(); ++i) {
    CHECK(std::isnan(single[i]) && std::isnan(wide[i]));
    CHECK_EQ(std::signbit(single[i]), std::signbit(nans[i]));
  }
}

// What came off the wire decodes to exactly the bfloat16 value, for all of them.
TEST(codec_bf16_decodes_every_value) {
  std::vector<uint16_t> bits(0x10000);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> values(bits.size());
  CHECK_OK(Find("bf16").Decode(DType::kFloat32, std::as_bytes(std::span(bits)), values.data(),
                               static_cast<int64_t>(bits.size())));
  for (size_t i = 0; i < bits.size(); ++i) {
    const double expected = testing::HalfValue(bits[i], testing::kBFloat16Format);
    if (std::isnan(expected) ? !CHECK(std::isnan(values[i])) : !CHECK_EQ(values[i], expected)) {
      break;
    }
  }
}

}  // namespace
}  // namespace jaxccomp
