// The contract of all codecs, and "bf16" with particular values.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "codec/registry.h"
#include "codec_contract.h"
#include "half_reference.h"

namespace jaxccomp {
namespace {

// All tests here share this scratch memory, one at a time.
CodingContext Context() {
  static Workspace workspace;
  return CodingContext(workspace);
}

const Codec& Find(std::string_view name) { return **LookupCodec(name); }

std::string Quoted(std::string_view text) {
  std::string quoted(text.size() + 2, '\'');
  quoted.replace(1, text.size(), text);
  return quoted;
}

TEST(codec_lookup_finds_every_row_of_the_table) {
  for (const CodecInfo* row : CodecTable()) {
    CHECK(!row->description.empty() && !row->ratio.empty());
    CHECK_EQ(row->lossless, row->error.empty());
    CHECK(std::is_sorted(row->options.begin(), row->options.end(),
                         [](const auto& a, const auto& b) { return a.name < b.name; }));
    auto found = LookupCodec(row->name);
    if (found.status().code() == Code::kUnavailable) continue;
    if (!CHECK_OK(found)) continue;
    CHECK_EQ((*found)->traits().spec, row->name);
    CHECK_EQ((*found)->traits().lossless, row->lossless);
    CHECK_EQ((*found)->traits().dtypes, row->dtypes);
  }
  for (std::string_view wrong : {"zip", "", "BF16", "none"}) {
    auto found = LookupCodec(wrong);
    CHECK_EQ(found.status().code(), Code::kInvalidArgument);
    const std::string& message = found.status().message();
    CHECK(message.find(Quoted(wrong)) != std::string::npos);
    for (const CodecInfo* row : CodecTable()) {
      CHECK(message.find(Quoted(row->name)) != std::string::npos);
    }
  }
  CHECK_EQ(LookupCodec("zip").status().message().substr(0, 39),
           "unknown codec 'zip': valid are 'raw', '");
}

TEST(codec_specs_are_canonical_and_invalid_ones_are_refused) {
  CHECK_EQ(Find(" bf16 | raw ").traits().spec, "bf16");
  CHECK_EQ(Find("raw|raw").traits().spec, "raw");
  CHECK_EQ(Find("bf16|lossless").traits().spec, "bf16|lossless");
  CHECK(&Find("bf16 | lossless") == &Find("bf16|lossless"));
  for (std::string_view wrong : {"bf16:block=2", "bf16:", "bf16:=", "lossless|bf16",
                                 "bf16|lossless|lossless", "bf16|", "|"}) {
    CHECK_EQ(LookupCodec(wrong).status().code(), Code::kInvalidArgument);
  }
  CHECK(!LookupCodec(std::string(100000, 'x')).ok());
}

TEST(codec_contract_holds_for_every_spec) {
  for (const std::string& spec : testing::SpecsToTest()) testing::CheckCodecContract(spec);
}

TEST(codec_bf16_supports_wide_floats_only) {
  const DTypeSet wide = SetOf(DType::kFloat32) | SetOf(DType::kFloat64);
  CHECK_EQ(Find("bf16").traits().dtypes, wide);
}

template <typename T>
std::vector<uint16_t> Bf16Bits(const std::vector<T>& values, DType dtype) {
  std::vector<uint16_t> bits(values.size());
  CHECK_OK(Find("bf16").Encode(dtype, values.data(), static_cast<int64_t>(values.size()),
                               std::as_writable_bytes(std::span(bits)), Context()));
  return bits;
}

TEST(codec_bf16_rounds_ties_to_even_and_keeps_infinity) {
  using FloatLimits = std::numeric_limits<float>;
  const float inf = FloatLimits::infinity();
  // 1 + 2^-8 is a tie and rounds to the even 1; 1 + 3 * 2^-8 rounds up to 1 + 2^-6.
  const std::vector<float> values = {0.0f, -0.0f, inf, -inf, 1.00390625f, 1.01171875f,
                                     FloatLimits::max(), 0x1.fep127f, FloatLimits::denorm_min()};
  const std::vector<uint16_t> bits = {0x0000, 0x8000, 0x7f80, 0xff80, 0x3f80, 0x3f82,
                                      0x7f80, 0x7f7f, 0x0000};
  CHECK(Bf16Bits(values, DType::kFloat32) == bits);
  CHECK(Bf16Bits(std::vector<double>(values.begin(), values.end()), DType::kFloat64) == bits);

  const std::vector<double> large = {1e39, -1e300, std::numeric_limits<double>::denorm_min(),
                                     // above the tie, by less than a float's resolution
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
  CHECK_OK(codec.Decode(DType::kFloat32, encoded, single.data(), 5, Context()));
  CHECK_OK(codec.Decode(DType::kFloat64, encoded, wide.data(), 5, Context()));
  for (size_t i = 0; i < nans.size(); ++i) {
    CHECK(std::isnan(single[i]) && std::isnan(wide[i]));
    CHECK_EQ(std::signbit(single[i]), std::signbit(nans[i]));
  }
}

// Every 16-bit pattern decodes to exactly its bfloat16 value.
TEST(codec_bf16_decodes_every_value) {
  std::vector<uint16_t> bits(0x10000);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> values(bits.size());
  CHECK_OK(Find("bf16").Decode(DType::kFloat32, std::as_bytes(std::span(bits)), values.data(),
                               static_cast<int64_t>(bits.size()), Context()));
  for (size_t i = 0; i < bits.size(); ++i) {
    const double expected = testing::HalfValue(bits[i], testing::kBFloat16Format);
    if (std::isnan(expected) ? !CHECK(std::isnan(values[i])) : !CHECK_EQ(values[i], expected)) {
      break;
    }
  }
}

}  // namespace
}  // namespace jaxccomp
