// The codecs that keep signs: encoded bytes and sums.
#include <cmath>
#include <vector>

#include "check.h"
#include "codec/random_bits.h"
#include "codec/sign/kernels.h"
#include "lossy_codecs.h"

namespace jaxccomp {
namespace {

using namespace testing;

Floats Ramp(int64_t count) {
  Floats values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 11 - 3) * 0.375f;
  return values;
}

// Golden encodings.
TEST(sign_codecs_keep_their_golden_bytes) {
  CHECK_EQ(Hex(EncodeFloats("onebit", Ramp(21))), "cdcc9c3f000040bf073800");
  CHECK_EQ(Hex(EncodeFloats("ternary", Ramp(21), {1, 2, 3}, 5)), "0000284000304004151c");
  CHECK_EQ(Hex(EncodeFloats("ternary:rounding=nearest", Ramp(21))), "00002840404444040400");
  CHECK_EQ(Hex(EncodeFloats("tbq", Ramp(21))), "77774714151d");
}

struct Coded {
  Bytes header[3], codes[4];
  Floats decoded[4];
  bool operator==(const Coded& other) const {
    for (int i = 0; i < 4; ++i) {
      if (i < 3 && header[i] != other.header[i]) return false;
      if (codes[i] != other.codes[i] || !SameBits(decoded[i], other.decoded[i])) return false;
    }
    return true;
  }
};

Coded Code(const sign::Kernels& kernels, const Floats& values, const uint16_t* random) {
  const auto count = static_cast<int64_t>(values.size());
  Coded encoded;
  for (Bytes& header : encoded.header) header.resize(8);
  for (Bytes& codes : encoded.codes) codes.resize(count / 4 + 1);
  for (Floats& decoded : encoded.decoded) decoded.assign(count, 1);
  const float* x = values.data();
  kernels.encode_onebit(x, count, encoded.header[0].data(), encoded.codes[0].data());
  kernels.encode_ternary(x, count, random, encoded.header[1].data(), encoded.codes[1].data());
  kernels.encode_ternary(x, count, nullptr, encoded.header[2].data(), encoded.codes[2].data());
  kernels.encode_threshold(x, count, 0.01f, encoded.codes[3].data());
  const float meanings[] = {0, 0.3f, kNaN, -0.3f};
  for (int add = 0; add < 2; ++add) {
    kernels.decode_onebit[add](encoded.header[0].data(), encoded.codes[0].data(), count,
                               encoded.decoded[add].data());
    kernels.decode_pairs[add](meanings, encoded.codes[3].data(), count,
                              encoded.decoded[2 + add].data());
  }
  return encoded;
}

TEST(sign_codecs_return_equal_bits_on_all_instruction_sets) {
  std::vector<uint16_t> room(4097 + kRandomRoom);
  const uint16_t* random = RandomBits({1, 2, 3}, 3, 4097, room.data());
  const auto tables = sign::RunnableKernels();
  for (int64_t count = 0; count <= 4097; ++count) {
    Floats values = count % 3 == 0   ? Gaussian(count)
                    : count % 5 == 0 ? Tiny(count)
                                     : Awkward(count);
    if (count % 3 == 1) {   // otherwise most blocks contain NaN or infinities
      for (float& v : values) v = std::isfinite(v) && std::fabs(v) < 0x1p100f ? v : 0x1p-99f;
    }
    const Coded expected = Code(*tables.back(), values, random);
    for (const sign::Kernels* table : tables) {
      const Coded encoded = Code(*table, values, random);
      const FlushSubnormals flush;
      if (!CHECK(encoded == expected && Code(*table, values, random) == expected)) {
        std::fprintf(stderr, "%d with %s\n", static_cast<int>(count), table->name);
        return;
      }
    }
  }
}

TEST(sign_onebit_preserves_the_means_of_both_signs) {
  CHECK(RoundTrip("onebit", {1, -2, 3, -4, 0}) ==
        (Floats{4.0f / 3, -3, 4.0f / 3, -3, 4.0f / 3}));
  CHECK(RoundTrip("onebit", {-1, -2}) == (Floats{-1.5f, -1.5f}));
  // A sum beyond float's range.
  constexpr float kMaxValue = std::numeric_limits<float>::max();
  CHECK(RoundTrip("onebit", Floats(2000, -kMaxValue)) == Floats(2000, -kMaxValue));
}

TEST(sign_ternary_rounds_to_nearest_or_without_bias) {
  CHECK(RoundTrip("ternary:rounding=nearest", {-4, 2, 2.01f, 1, -3}) == (Floats{-4, 0, 4, 0, -4}));
  CHECK(RoundTrip("ternary", {-4, 4, 0, -0.0f}) == (Floats{-4, 4, 0, 0}));
  CheckUnbiased("ternary", Gaussian(64), 0.07);
  CheckKeys("ternary");
  CheckCutting("ternary", 1024);
  CheckCutting("ternary:block=256", 256);
}

TEST(sign_tbq_keeps_values_at_or_above_the_threshold) {
  const Floats decoded =
      RoundTrip("tbq:threshold=0.5", {0.5f, -0.5f, 0.499f, 7, -1e30f, 0, kNaN, kInfinity});
  CHECK(Floats(decoded.begin(), decoded.begin() + 6) == (Floats{0.5f, -0.5f, 0, 0.5f, -0.5f, 0}));
  CHECK(std::isnan(decoded[6]) && std::isnan(decoded[7]));
}

TEST(sign_codecs_ignore_the_threads_flush_to_zero_mode) {
  for (const char* spec : {"onebit", "ternary", "ternary:rounding=nearest", "tbq",
                           "tbq:threshold=1e-30", "onebit:block=256", "ternary:block=256"}) {
    CheckFlushing(spec);
  }
}

}  // namespace
}  // namespace jaxccomp
