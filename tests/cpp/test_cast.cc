// "bf16:rounding=stochastic": how often values round up, values that never change, and the source of random numbers.
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "codec/cast/kernels.h"
#include "codec/random_bits.h"
#include "common/half.h"
#include "lossy_codecs.h"

namespace jaxccomp {
namespace {

using namespace testing;

constexpr char kSpec[] = "bf16:rounding=stochastic";

float OfBits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Encodings that must not change.
TEST(cast_stochastic_keeps_its_golden_bytes) {
  Floats values(10);
  for (int i = 0; i < 10; ++i) values[i] = static_cast<float>(i - 3) * 0.3751f;
  CHECK_EQ(Hex(EncodeFloats(kSpec, values, {1, 2, 3}, 5)),
           "90bf40bfc0be0000c03e403f903fc03ff03f1040");
}

// A value that lies a fraction k / 2^16 of the way to the next bfloat16 rounds up for k of the 2^16 random numbers. The
// mean is therefore exact.
TEST(cast_stochastic_mean_is_exact) {
  for (uint32_t upper : {0x0000u, 0x0001u, 0x007fu, 0x0080u, 0x3f80u, 0x3fffu, 0x7f7eu}) {
    for (uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0xbeefu, 0xffffu}) {
      for (uint32_t sign : {0u, 0x8000u}) {
        const float value = OfBits((sign | upper) << 16 | lower);
        uint32_t ups = 0, others = 0;
        for (uint32_t random = 0; random < 0x10000; ++random) {
          const uint32_t code = ToBFloat16(value, random).bits;
          ups += code == (sign | (upper + 1)) ? 1 : 0;
          others += code != (sign | upper) && code != (sign | (upper + 1)) ? 1 : 0;
        }
        CHECK_EQ(ups, lower);
        CHECK_EQ(others, 0u);
      }
    }
  }
}

TEST(cast_stochastic_keeps_values_representable_in_bfloat16) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = ToFloat(BFloat16{static_cast<uint16_t>(bits)});
    const uint16_t nearest = ToBFloat16(value).bits;   // this makes NaN quiet
    for (uint32_t random : {0u, 1u, 0x8000u, 0xffffu}) {
      if (!CHECK_EQ(ToBFloat16(value, random).bits, nearest)) return;
    }
  }
}

TEST(cast_stochastic_keeps_nan_and_never_rounds_to_infinity) {
  for (uint32_t random : {0u, 0xffffu}) {
    // No finite bfloat16 lies above the largest one.
    for (uint32_t bits : {0x7f7f0000u, 0x7f7f0001u, 0x7f7f8000u, 0x7f7fffffu}) {
      CHECK_EQ(ToBFloat16(OfBits(bits), random).bits, 0x7f7f);
      CHECK_EQ(ToBFloat16(OfBits(bits | 0x80000000), random).bits, 0xff7f);
    }
    // NaN keeps its sign and the upper bits of its payload, and becomes quiet, as in rounding to nearest.
    for (uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fa0ffffu, 0xffffffffu, 0x7fc12345u}) {
      CHECK_EQ(ToBFloat16(OfBits(bits), random).bits, ToBFloat16(OfBits(bits)).bits);
    }
  }
  // Doubles beyond float's range become infinite, as in all codecs that encode floats.
  const std::vector<double> doubles = {1e39, -1e300, std::numeric_limits<float>::max(), -0.0};
  const Bytes code = EncodeValues(kSpec, DType::kFloat64, doubles.data(), 4, {1, 2, 3}, 0);
  std::vector<uint16_t> bits(4);
  std::memcpy(bits.data(), code.data(), code.size());
  CHECK(bits == (std::vector<uint16_t>{0x7f80, 0xff80, 0x7f7f, 0x8000}));
}

TEST(cast_stochastic_random_numbers_depend_on_key_and_position) {
  CheckKeys(kSpec);
  for (int64_t cut : {1, 4096}) CheckCutting(kSpec, cut);
  // Within [-0.07, 0.07] bfloat16 has steps of at most 2^-11.
  CheckUnbiased(kSpec, Gaussian(64), 0x1p-11);
}

std::vector<uint16_t> Rounded(cast::Kernels::Round round, const void* values,
                              const uint16_t* random, int64_t count) {
  std::vector<uint16_t> out(static_cast<size_t>(count) + 1, 0x5a5a);
  round(out.data(), values, random, count);
  CHECK_EQ(out.back(), 0x5a5a);
  return out;
}

// Results do not depend on the thread's mode for subnormals.
TEST(cast_returns_equal_bits_on_all_instruction_sets) {
  const auto tables = cast::RunnableKernels();
  std::vector<uint16_t> room(4097 + kRandomRoom);
  const uint16_t* random = RandomBits({1, 2, 3}, 3, 4097, room.data());
  for (int64_t count = 0; count <= 4097; count += count < 100 ? 1 : 571) {
    for (const Floats& values : {Gaussian(count), Awkward(count), Tiny(count)}) {
      const std::vector<double> doubles(values.begin(), values.end());
      const auto expected = Rounded(tables.back()->float_to_bfloat16, values.data(), random, count);
      for (int64_t i = 0; i < count; ++i) {
        if (!CHECK_EQ(expected[i], ToBFloat16(values[i], random[i]).bits)) return;
      }
      for (const cast::Kernels* table : tables) {
        CHECK(Rounded(table->float_to_bfloat16, values.data(), random, count) == expected);
        CHECK(Rounded(table->double_to_bfloat16, doubles.data(), random, count) == expected);
        const FlushSubnormals flush;
        CHECK(Rounded(table->float_to_bfloat16, values.data(), random, count) == expected);
      }
    }
  }
}

}  // namespace
}  // namespace jaxccomp
