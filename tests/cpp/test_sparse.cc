// The codecs "topk", "dgc" and "randomk".
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "codec/sparse/kernels.h"
#include "lossy_codecs.h"

namespace jaxccomp {
namespace {

using testing::Bytes;
using testing::FindCodec;
using testing::Hex;

CodingContext Context(uint64_t step = 7, int64_t first = 0) {
  static Workspace workspace;
  CodingContext context(workspace);
  context.key = {step, 3, 1};
  context.first = first;
  return context;
}

Bytes Encode(const Codec& codec, const std::vector<float>& values,
             const CodingContext& context = Context()) {
  const auto count = static_cast<int64_t>(values.size());
  Bytes code(codec.MaxEncodedBytes(DType::kFloat32, count));
  const auto bytes = codec.Encode(DType::kFloat32, values.data(), count, code, context);
  if (!CHECK_OK(bytes)) return {};
  code.resize(*bytes);
  return code;
}

std::vector<float> Decode(const Codec& codec, const Bytes& code, int64_t count) {
  std::vector<float> values(count, 99.0f);
  CHECK_OK(codec.Decode(DType::kFloat32, code, values.data(), count, Context()));
  return values;
}

bool Refused(const Codec& codec, const Bytes& code, int64_t count) {
  std::vector<float> values(count);
  return codec.Decode(DType::kFloat32, code, values.data(), count, Context()).code() ==
         Code::kDataLoss;
}

enum class Kind { kGaussian, kHeavyTailed, kConstant, kZero, kFewNotZero, kFewValues, kPeriodic };
constexpr Kind kKinds[] = {Kind::kGaussian, Kind::kHeavyTailed, Kind::kConstant, Kind::kZero,
                           Kind::kFewNotZero, Kind::kFewValues, Kind::kPeriodic};

std::vector<float> Make(Kind kind, int64_t count) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::cauchy_distribution<float> cauchy;
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    switch (kind) {
      case Kind::kGaussian: values[i] = normal(random); break;
      case Kind::kHeavyTailed: values[i] = cauchy(random); break;
      case Kind::kConstant: values[i] = -1.5f; break;
      case Kind::kZero: values[i] = i % 2 ? -0.0f : 0.0f; break;
      case Kind::kFewNotZero: values[i] = random() % 1000 == 0 ? normal(random) : 0; break;
      case Kind::kFewValues: values[i] = static_cast<float>(random() % 5) - 2; break;
      case Kind::kPeriodic: values[i] = i % 32 == 0 ? 0 : normal(random); break;
    }
  }
  return values;
}

// The indices of the k largest by sorting; the first of equal ones.
std::vector<int64_t> PlainTopK(const std::vector<float>& values, int64_t k) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::fabs(values[a]) > std::fabs(values[b]);
  });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

TEST(codec_sparse_kernels_return_equal_positions) {
  std::mt19937 random(4);
  Bytes values(3000 * 8 + 1);
  for (auto& b : values) b = static_cast<std::byte>(random());
  const auto check = [&]<typename Word>(Word threshold) {
    for (int64_t count : {0, 1, 15, 16, 17, 31, 32, 33, 1000, 3000}) {
      std::vector<uint16_t> expected;
      for (int64_t i = 0; i < count; ++i) {
        Word word;
        std::memcpy(&word, &values[1 + i * sizeof(Word)], sizeof(Word));
        word &= std::numeric_limits<Word>::max() >> 1;
        if (word >= threshold) expected.push_back(static_cast<uint16_t>(i));
      }
      for (const sparse::Kernels* kernels : sparse::RunnableKernels()) {
        std::vector<uint16_t> offsets(count);
        const int64_t found =
            sparse::Above(*kernels, values.data() + 1, count, threshold, offsets.data());
        offsets.resize(found);
        CHECK(offsets == expected);
        CHECK_EQ(sparse::AnyAbove(*kernels, values.data() + 1, count, threshold),
                 !expected.empty());
      }
    }
  };
  for (int part : {0, 40, 99}) {   // percent of all magnitudes; 0: only zeros below
    check(static_cast<uint16_t>(1 + 0x7ffe * part / 100));
    check(static_cast<uint32_t>(1 + 0x7ffffffell * part / 100));
    check(static_cast<uint64_t>(1 + 0x7ffffffffffffffeull / 100 * part));
  }
}

TEST(codec_topk_selects_the_same_values_as_sorting) {
  for (std::string_view spec : {"topk", "topk:density=1e-06", "topk:density=0.3",
                                "topk:density=1"}) {
    const Codec& codec = FindCodec(spec);
    const double density =
        spec == "topk" ? 0.01 : std::stod(std::string(spec.substr(spec.find('=') + 1)));
    for (Kind kind : kKinds) {
      for (int64_t count : {1, 100, 4096, 4097, 65536, 65537, 200000}) {
        const std::vector<float> values = Make(kind, count);
        const auto k = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(density * count)));
        const Bytes code = Encode(codec, values);
        CHECK_EQ(code.size(), 1 + 4 * ((count + 65535) / 65536) + 6 * k);
        std::vector<float> expected(count);
        for (int64_t i : PlainTopK(values, k)) expected[i] = values[i];
        const std::vector<float> decoded = Decode(codec, code, count);
        // Bitwise, because zeros have signs.
        CHECK(std::memcmp(decoded.data(), expected.data(), count * sizeof(float)) == 0);
      }
    }
  }
}

TEST(codec_sparse_keeps_golden_bytes) {
  const std::vector<float> values = {1, -3, 0.5f, 3, -2, 0, 3, 1};
  CHECK_EQ(Hex(Encode(FindCodec("topk:density=0.25"), values)),
           "00" "02000000" "01000300" "000040c0" "00004040");
  CHECK_EQ(Hex(Encode(FindCodec("dgc:density=0.25"), values)),
           "00" "0300000000000000" "03000000" "010003000600" "000040c0" "00004040" "00004040");
  CHECK_EQ(Hex(Encode(FindCodec("randomk:density=0.25"), values, Context(7, 16))),
           "00" "0700000000000000" "03000000" "01000000" "1000000000000000"
           "000040c0" "00000000");
  // Infinite input: all NaN.
  const float infinity = std::numeric_limits<float>::infinity();
  for (std::string_view spec : {"topk", "dgc", "randomk"}) {
    std::vector<float> bad(70000, 1.0f);
    bad[69000] = -infinity;
    const Bytes code = Encode(FindCodec(spec), bad);
    CHECK(code[0] == std::byte{1});
    const std::vector<float> decoded = Decode(FindCodec(spec), code, 70000);
    CHECK(std::all_of(decoded.begin(), decoded.end(), [](float v) { return std::isnan(v); }));
    for (size_t at : {size_t{1}, code.size() - 1}) {
      Bytes changed = code;
      changed[at] = std::byte{1};
      CHECK(Refused(FindCodec(spec), changed, 70000));
    }
  }
}

TEST(codec_sparse_decoder_refuses_invalid_bytes) {
  const std::vector<float> values = {1, -3, 0.5f, 3, -2, 0, 3, 1};
  for (std::string_view spec : {"topk:density=0.25", "dgc:density=0.25"}) {
    const Codec& codec = FindCodec(spec);
    const Bytes code = Encode(codec, values);
    const size_t counts = spec[0] == 't' ? 1 : 9, offsets = counts + 4;
    const auto with = [&](size_t at, int byte) {
      Bytes changed = code;
      changed[at] = static_cast<std::byte>(byte);
      return changed;
    };
    CHECK(!Refused(codec, with(code.size() - 1, 0), 8));   // another value
    CHECK(Refused(codec, with(0, 2), 8));                  // flag
    CHECK(Refused(codec, with(counts, 1), 8));             // too few
    CHECK(Refused(codec, with(counts, 9), 8));             // more than values
    CHECK(Refused(codec, with(counts + 3, 255), 8));       // 2^32
    CHECK(Refused(codec, with(offsets + 2, 1), 8));        // the same place twice
    CHECK(Refused(codec, with(offsets, 5), 8));            // not in order
    CHECK(Refused(codec, with(spec[0] == 't' ? offsets + 2 : offsets + 4, 8), 8));   // outside
    if (spec[0] == 'd') {
      CHECK(Refused(codec, with(1, 2), 8));
      CHECK(Refused(codec, with(8, 255), 8));
    }
  }
  // The count of a sub-block exceeds its size, while the sum is right.
  Bytes code = Encode(FindCodec("topk:density=1"), std::vector<float>(65537, 1.0f));
  code[1] = std::byte{255};
  code[2] = std::byte{255};
  code[3] = std::byte{0};
  code[5] = std::byte{2};
  CHECK(Refused(FindCodec("topk:density=1"), code, 65537));
}

TEST(codec_dgc_keeps_between_a_third_and_twice_the_density) {
  for (double density : {0.001, 0.01, 0.1}) {
    const Codec& codec = FindCodec("dgc:density=" + std::to_string(density));
    for (Kind kind : kKinds) {
      for (int64_t count : {1000, 70000, 300000}) {
        const auto k = static_cast<int64_t>(std::ceil(density * static_cast<double>(count)));
        const std::vector<float> values = Make(kind, count);
        const Bytes code = Encode(codec, values);
        int64_t kept;
        std::memcpy(&kept, &code[1], sizeof(kept));
        CHECK(kept <= 2 * k);
        if (kind == Kind::kGaussian || kind == Kind::kHeavyTailed) CHECK(kept >= k / 3);
        if (kind == Kind::kConstant) CHECK_EQ(kept, k);
        if (kind == Kind::kZero) CHECK_EQ(kept, 0);
        // The largest values are sent.
        const std::vector<float> decoded = Decode(codec, code, count);
        float least = std::numeric_limits<float>::max(), most = 0;
        for (int64_t i = 0; i < count; ++i) {
          if (decoded[i] != 0) {
            CHECK(decoded[i] == values[i]);
            least = std::min(least, std::fabs(values[i]));
          } else {
            most = std::max(most, std::fabs(values[i]));
          }
        }
        CHECK(kept == 0 || least >= most);
      }
    }
  }
}

TEST(codec_randomk_positions_are_uniform_and_keyed) {
  const Codec& codec = FindCodec("randomk");
  const std::vector<float> ones(1000, 1.0f);
  const auto places = [&](uint64_t step, int64_t first) {
    return Decode(codec, Encode(codec, ones, Context(step, first)), 1000);
  };
  CHECK(places(1, 0) == places(1, 0));
  CHECK(places(1, 0) != places(2, 0));
  CHECK(places(1, 0) != places(1, 1000));
  // 4000 draws, each of one value in each of ten parts: all 100 places of a part about equally often.
  std::vector<int> drawn(1000);
  for (uint64_t step = 0; step < 4000; ++step) {
    const std::vector<float> decoded = places(step, 0);
    for (int part = 0; part < 10; ++part) {
      int here = 0;
      for (int i = part * 100; i < part * 100 + 100; ++i) {
        here += decoded[i] != 0;
        drawn[i] += decoded[i] != 0;
      }
      CHECK_EQ(here, 1);
    }
  }
  const auto [least, most] = std::minmax_element(drawn.begin(), drawn.end());
  CHECK(*least > 40 - 5 * 7 && *most < 40 + 5 * 7);   // mean 40, standard deviation 6.3
}

TEST(codec_randomk_mean_equals_the_values) {
  const Codec& codec = FindCodec("randomk:density=0.1,unbiased=true");
  const std::vector<float> values = Make(Kind::kGaussian, 105);   // parts of 9 and 10
  std::vector<double> mean(105);
  constexpr int kSteps = 40000;
  for (uint64_t step = 0; step < kSteps; ++step) {
    const std::vector<float> decoded = Decode(codec, Encode(codec, values, Context(step)), 105);
    for (int i = 0; i < 105; ++i) mean[i] += decoded[i] / kSteps;
  }
  for (int i = 0; i < 105; ++i) CHECK(std::fabs(mean[i] - values[i]) < 0.1 * std::fabs(values[i]));
  // Scaled values stay within float's range.
  const float most = std::numeric_limits<float>::max();
  for (float v : Decode(codec, Encode(codec, std::vector<float>(100, -most)), 100)) {
    CHECK(v == 0 || v == -most);
  }
}

}  // namespace
}  // namespace jaxccomp
