// The codecs that quantise blocks: encoded bytes and rounding.
#include <cmath>
#include <vector>

#include "check.h"
#include "codec/quantize/kernels.h"
#include "codec/random.h"
#include "codec/random_bits.h"
#include "lossy_codecs.h"

namespace jaxccomp {
namespace {

using namespace testing;

const char* const kNames[] = {"int8", "int4", "int2", "fp8_e4m3", "fp8_e5m2"};

Floats Ramp(int64_t count) {
  Floats values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(i - 3) * 0.375f;
  return values;
}

// Golden encodings: ten values, and stochastic rounding of one block and three more values.
TEST(quantize_keeps_its_golden_bytes) {
  const char* const few[] = {"923cc1d6eb00152a3f54697e", "a53e2d3e5f6071", "1040401010",
                             "78f1ece400646c71747779", "71f4f2ee006e7274767878"};
  const char* const more[] = {
      "aa3dbc3df2f7fb0005090e12161b1f25292e31363b3f43484d52565b5f63686d71757a7e767b7e",
      "c03fd53f4f4030404150415161516162626373737707", "28413a41501040445054405015"};
  for (int f = 0; f < quantize::kFormats; ++f) {
    CHECK_EQ(Hex(EncodeFloats(kNames[f], Ramp(10))), few[f]);
    if (f >= quantize::kIntFormats) continue;
    const std::string spec = std::string(kNames[f]) + ":rounding=stochastic";
    CHECK_EQ(Hex(EncodeFloats(spec, Ramp(35), {1, 2, 3}, 5)), more[f]);
  }
}

TEST(quantize_random_bits_equal_philox) {
  const RandomKey key = {0x123456789abcdef0, 77, 0xffffffff};
  std::vector<uint16_t> room(2000 + kRandomRoom);
  for (int64_t first : {int64_t{0}, int64_t{5}, int64_t{1} << 35, (int64_t{8} << 32) - 20}) {
    for (int64_t count : {1, 7, 8, 64, 65, 1000}) {
      const uint16_t* random = RandomBits(key, first, count, room.data());
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t p = static_cast<uint64_t>(first + i);
        const uint32_t word = Philox(key, p / 8)[p % 8 / 2];
        if (!CHECK_EQ(random[i], static_cast<uint16_t>(word >> (p % 2 * 16)))) return;
      }
    }
    std::vector<uint16_t> expected(512), other(512);
    for (const RandomKernels* kernels : RunnableRandomKernels()) {
      kernels->fill(key, static_cast<uint64_t>(first / 8), 64, other.data());
      if (kernels == RunnableRandomKernels().front()) expected = other;
      CHECK(other == expected);
    }
  }
}

struct Coded {
  Bytes scales, codes;
  Floats decoded, added;
  bool operator==(const Coded& other) const {
    return scales == other.scales && codes == other.codes &&
           SameBits(decoded, other.decoded) && SameBits(added, other.added);
  }
};

Coded Code(const quantize::Kernels& kernels, int format, int block, const Floats& values,
           const uint16_t* random) {
  const auto count = static_cast<int64_t>(values.size());
  Coded encoded{Bytes(count / 16 + 2), Bytes(count), Floats(count), Floats(count, 1)};
  const auto encode = random != nullptr ? kernels.encode_stochastic[format][block]
                                        : kernels.encode[format][block];
  std::byte* scales = encoded.scales.data();
  encode(values.data(), count, random, scales, encoded.codes.data());
  constexpr float kLimit = std::numeric_limits<float>::max();
  kernels.decode[format][block](scales, encoded.codes.data(), count, kLimit, encoded.decoded.data());
  kernels.decode_add[format][block](scales, encoded.codes.data(), count, kLimit, encoded.added.data());
  return encoded;
}

TEST(quantize_returns_equal_bits_on_all_instruction_sets) {
  const auto tables = quantize::RunnableKernels();
  std::vector<uint16_t> room(4097 + kRandomRoom);
  const uint16_t* random = RandomBits({1, 2, 3}, 3, 4097, room.data());
  for (int64_t count = 0; count <= 4097; count += count < 600 ? 1 : 97) {
    const Floats values = count % 3 == 0   ? Gaussian(count)
                          : count % 3 == 1 ? Awkward(count)
                                           : Tiny(count);
    for (int format = 0; format < quantize::kFormats; ++format) {
      // All block sizes in turn, or all at once for lengths at the ends of blocks.
      const int step = count % 32 <= 1 ? 1 : quantize::kBlockSizes;
      for (int block = static_cast<int>(count) % step; block < quantize::kBlockSizes;
           block += step) {
        for (const uint16_t* bits : {static_cast<const uint16_t*>(nullptr), random}) {
          if (bits != nullptr && format >= quantize::kIntFormats) continue;
          const Coded expected = Code(*tables.back(), format, block, values, bits);
          for (const quantize::Kernels* table : tables) {
            const Coded encoded = Code(*table, format, block, values, bits);
            const FlushSubnormals flush;
            const Coded flushed = Code(*table, format, block, values, bits);
            if (!CHECK(encoded == expected && flushed == expected)) {
              std::fprintf(stderr, "%s of %s, %d of block %d\n", kNames[format], table->name,
                           static_cast<int>(count), static_cast<int>(quantize::kBlocks[block]));
              return;
            }
          }
        }
      }
    }
  }
}

TEST(quantize_rounds_to_nearest_even) {
  // A largest value of 127 makes the scale 1.
  CHECK(RoundTrip("int8", {127, 0.5f, 1.5f, -0.5f, -2.5f, 3.4999f, -126.6f}) ==
        (Floats{127, 0, 2, 0, -2, 3, -127}));
  CHECK(RoundTrip("int4", {7, 0.5f, 1.5f, -6.5f, -7}) == (Floats{7, 0, 2, -6, -7}));
  CHECK(RoundTrip("int2", {1, 0.5f, -0.5f, 0.51f, -0.75f}) == (Floats{1, 0, 0, 1, -1}));
  // Steps of 2^-9 below 2^-6; 1.0625 and 1.1875 lie between multiples of 1/8.
  CHECK(RoundTrip("fp8_e4m3", {448, 1.0625f, 1.1875f, 0x1p-9f, 0x1p-10f, 0x3p-10f, -0x7.8p-9f}) ==
        (Floats{448, 1, 1.25f, 0x1p-9f, 0, 0x1p-8f, -0x1p-6f}));
  CHECK(RoundTrip("fp8_e5m2", {57344, 1.125f, 1.375f, 0x1p-16f, 0x1p-17f, -0x3p-17f}) ==
        (Floats{57344, 1, 1.5f, 0x1p-16f, 0, -0x1p-15f}));
}

TEST(quantize_fp8_represents_all_its_values_exactly) {
  struct Fp8 { const char* name; int mantissa, bias, most; };
  for (const Fp8& f : {Fp8{"fp8_e4m3", 3, 7, 0x7e}, Fp8{"fp8_e5m2", 2, 15, 0x7b}}) {
    Floats values;
    for (int code = 0; code <= f.most; ++code) {
      const int exponent = code >> f.mantissa, fraction = code & ((1 << f.mantissa) - 1);
      const int digits = exponent > 0 ? fraction + (1 << f.mantissa) : fraction;
      const float value = std::ldexp(static_cast<float>(digits),
                                     (exponent > 0 ? exponent : 1) - f.bias - f.mantissa);
      values.push_back(value);
      values.push_back(-value);
    }
    const std::string spec = std::string(f.name) + ":block=256";
    CHECK(RoundTrip(spec, values) == values);
  }
}

TEST(quantize_stochastic_rounding_is_unbiased_and_keyed) {
  for (const char* name : {"int8", "int4", "int2"}) {
    const std::string spec = std::string(name) + ":rounding=stochastic";
    CheckKeys(spec);
    CheckCutting(spec, 32);
    const Floats values = Gaussian(64);
    const double most = name[3] == '8' ? 127 : name[3] == '4' ? 7 : 1;
    CheckUnbiased(spec, values, 0.07 * (1 + 0x1p-7) / most);
    // Multiples of the scale are exact.
    const Floats whole = {static_cast<float>(most), 0, -1, 1, 0};
    CHECK(RoundTrip(spec, whole) == whole);
  }
  CheckCutting("int8:block=256,rounding=stochastic", 256);
}

TEST(quantize_ignores_the_threads_flush_to_zero_mode) {
  for (const char* name : kNames) CheckFlushing(name);
  for (const char* name : {"int8", "int4", "int2"}) {
    CheckFlushing(std::string(name) + ":rounding=stochastic");
  }
}

TEST(quantize_keeps_the_largest_values_finite) {
  constexpr float kMaxValue = std::numeric_limits<float>::max();
  for (const char* name : kNames) {
    for (float value : {kMaxValue, -kMaxValue, 0x1.ffp127f, 0x1.fep127f, 0x1p127f, 0x1.02p126f}) {
      for (float y : RoundTrip(name, Floats(33, value))) {
        if (!CHECK(std::isfinite(y) && std::fabs(y - value) <= std::fabs(value) / 16)) return;
      }
    }
  }
}

TEST(quantize_merges_without_rounding_to_half_types) {
  Workspace workspace;
  const CodingContext context(workspace);
  const std::vector<uint16_t> ones(40, 0x3f80);   // 1.0 as bfloat16
  Floats values(40, 1.0f), accumulated(40, 100);
  values[3] = 0.3f;
  std::vector<uint16_t> halves = ones;
  halves[3] = 0x3e9a;
  const Codec& codec = FindCodec("int8");
  Bytes code(codec.MaxEncodedBytes(DType::kBFloat16, 40));
  CHECK_OK(codec.Encode(DType::kBFloat16, halves.data(), 40, code, context));
  CHECK_OK(codec.DecodeMerge(DType::kBFloat16, code, ReduceOp::kSum, DType::kFloat32,
                             accumulated.data(), 40, context));
  // 38 steps of 2^-7, which is the scale: 1/127 rounded up.
  const float scale = 0x1.04p-7f;
  CHECK_EQ(accumulated[3], 100 + std::nearbyint(0.30078125f / scale) * scale);
  CHECK_EQ(accumulated[0], 100 + 126 * scale);
}

}  // namespace
}  // namespace jaxccomp
