// The codecs "zstd", "lz4" and "zfp", each if its library is found. JAXCCOMP_LIBZFP may give the
// path of libzfp.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "codec/library/shuffle.h"
#include "codec/registry.h"
#include "common/dynamic_library.h"

namespace jaxccomp {
namespace {

using Bytes = std::vector<std::byte>;

CodingContext Context() {
  static Workspace workspace;
  return CodingContext(workspace);
}

// Null, with a printed reason, if the library is not found.
std::shared_ptr<const Codec> Find(std::string_view spec) {
  auto found = LookupCodec(spec);
  if (found.ok()) return *found;
  CHECK_EQ(found.status().code(), Code::kUnavailable);
  std::printf("left out: %s\n", found.status().message().c_str());
  return nullptr;
}

template <typename T>
Bytes Encode(const Codec& codec, DType dtype, const std::vector<T>& values) {
  const auto count = static_cast<int64_t>(values.size() * sizeof(T) / SizeBytes(dtype));
  Bytes code(codec.MaxEncodedBytes(dtype, count));
  const auto bytes = codec.Encode(dtype, values.data(), count, code, Context());
  if (!CHECK_OK(bytes)) return {};
  code.resize(*bytes);
  return code;
}

template <typename T>
std::vector<T> Decode(const Codec& codec, DType dtype, const Bytes& code, int64_t count) {
  std::vector<T> values(count);
  CHECK_OK(codec.Decode(dtype, code, values.data(), count, Context()));
  return values;
}

Bytes FromHex(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  Bytes bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(digit(hex[i]) << 4 | digit(hex[i + 1])));
  }
  return bytes;
}

std::vector<float> Gaussian(int64_t count) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(count);
  for (auto& v : values) v = normal(random);
  return values;
}

TEST(codec_library_shuffle_transposes_bytes_and_is_invertible) {
  std::mt19937 random(1);
  for (int64_t word_bytes : {2, 4, 8}) {
    for (int64_t count : {0, 1, 31, 32, 33, 64, 100, 1000}) {
      Bytes values(count * word_bytes + 1);
      for (auto& b : values) b = static_cast<std::byte>(random());
      Bytes expected(count * word_bytes);
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t p = 0; p < word_bytes; ++p) {
          expected[p * count + i] = values[1 + i * word_bytes + p];
        }
      }
      for (const library::ShuffleKernels* kernels : library::RunnableShuffleKernels()) {
        Bytes planes(expected.size()), back(expected.size());
        kernels->shuffle(values.data() + 1, count, word_bytes, planes.data());
        CHECK(planes == expected);
        kernels->unshuffle(planes.data(), count, word_bytes, back.data());
        CHECK(std::equal(back.begin(), back.end(), values.begin() + 1));
      }
    }
  }
}

TEST(codec_library_missing_error_names_the_files) {
  constexpr const char* kNone[] = {"libjaxccomp-none.so.1", "libjaxccomp-none.so.2"};
  DynamicLibrary none("none", kNone);
  CHECK(!none.is_open());
  CHECK(none.missing().find("libjaxccomp-none.so.1") != std::string::npos);
  CHECK(none.missing().find("libjaxccomp-none.so.2") != std::string::npos);
  int (*function)() = nullptr;
  none.Find("anything", &function);
  CHECK(function == nullptr);

  constexpr const char* kC[] = {"libc.so.6"};
  AddLibraryPath("c", "/nowhere/libc.so.6");   // the next name is tried
  DynamicLibrary c("c", kC);
  CHECK(c.is_open() && c.missing().empty());
  c.Find("abs", &function);
  CHECK(function != nullptr);
  c.Find("jaxccomp_none", &function);
  CHECK_EQ(c.missing(), "libc.so.6 does not offer jaxccomp_none");
}

// At most one byte longer than the values, shorter if anything repeats; codes of all modes decode.
TEST(codec_library_stores_incompressible_values_with_one_extra_byte) {
  for (std::string_view spec : {"zstd", "lz4"}) {
    const auto codec = Find(spec);
    if (codec == nullptr) continue;
    std::mt19937 random(2);
    std::vector<uint32_t> noise(5000);
    for (auto& v : noise) v = static_cast<uint32_t>(random());
    const Bytes stored = Encode(*codec, DType::kUInt32, noise);
    CHECK_EQ(stored.size(), 20001);
    CHECK(stored[0] == std::byte{0});
    CHECK(Decode<uint32_t>(*codec, DType::kUInt32, stored, 5000) == noise);

    const std::vector<float> gaussian = Gaussian(100000);
    const Bytes code = Encode(*codec, DType::kFloat32, gaussian);
    CHECK(code.size() <= 400001);
    CHECK(Decode<float>(*codec, DType::kFloat32, code, 100000) == gaussian);
    CHECK_EQ(Encode(*codec, DType::kFloat32, std::vector<float>(100000, 1.5f))[0], std::byte{1});
  }
}

// Byte planes of 64 equal float16 words, made by the libraries' own encoders.
TEST(codec_library_decodes_golden_bytes) {
  const std::vector<uint16_t> values(64, 0x3c12);
  struct Golden {
    std::string_view spec, hex;
  };
  for (const Golden& golden : {
           Golden{"zstd", "0128b52ffd00005d00001812123c020004929804b0"},
           Golden{"lz4", "011f1201002c1f3c010027503c3c3c3c3c"}}) {
    const auto codec = Find(golden.spec);
    if (codec == nullptr) continue;
    CHECK(Decode<uint16_t>(*codec, DType::kFloat16, FromHex(golden.hex), 64) == values);
  }
}

TEST(codec_library_decoder_refuses_invalid_bytes) {
  std::vector<uint16_t> out(64);
  const auto refused = [&](const Codec& codec, const Bytes& code, int64_t count = 64) {
    return codec.Decode(DType::kFloat16, code, out.data(), count, Context()).code() ==
           Code::kDataLoss;
  };
  for (std::string_view spec : {"zstd", "lz4"}) {
    const auto codec = Find(spec);
    if (codec == nullptr) continue;
    const Bytes code = Encode(*codec, DType::kFloat16, std::vector<uint16_t>(64, 0x3c12));
    CHECK(code[0] == std::byte{1});
    CHECK(!refused(*codec, code));
    // Another number of values; the stream twice; another mode; a code as long as the values.
    CHECK(refused(*codec, code, 63));
    Bytes twice = code;
    twice.insert(twice.end(), code.begin() + 1, code.end());
    CHECK(refused(*codec, twice));
    Bytes mode = code;
    mode[0] = std::byte{2};
    CHECK(refused(*codec, mode));
    Bytes longer = code;
    longer.resize(1 + 128);
    CHECK(refused(*codec, longer));
    // A short code must not allocate much memory.
    CHECK_EQ(codec->Decode(DType::kFloat64, code, out.data(), int64_t{1} << 40, Context()).code(),
             Code::kDataLoss);
  }
  // A frame followed by a skippable frame.
  if (const auto zstd = Find("zstd")) {
    Bytes code = Encode(*zstd, DType::kFloat16, std::vector<uint16_t>(64, 0x3c12));
    const Bytes skipped = FromHex("502a4d1800000000");
    code.insert(code.end(), skipped.begin(), skipped.end());
    CHECK(refused(*zstd, code));
  }
}

double Largest(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error = std::max(error, std::fabs(static_cast<double>(a[i]) - b[i]));
  }
  return error;
}

TEST(codec_zfp_refuses_conflicting_modes_and_bounds_errors) {
  for (std::string_view both : {"zfp:precision=8,rate=4", "zfp:rate=4,tolerance=0.1",
                                "zfp:precision=8,tolerance=0.1"}) {
    const auto found = LookupCodec(both);
    if (found.status().code() == Code::kUnavailable) continue;
    CHECK_EQ(found.status().code(), Code::kInvalidArgument);
    CHECK(found.status().message().find("exclude each other") != std::string::npos);
  }
  const std::vector<float> values = Gaussian(10000);
  for (double tolerance : {1e-2, 1e-4, 1e-9}) {
    char spec[64];
    std::snprintf(spec, sizeof(spec), "zfp:tolerance=%g", tolerance);
    const auto codec = Find(spec);
    if (codec == nullptr) return;
    CHECK_EQ(codec->Bound(DType::kFloat32).absolute, tolerance);
    const Bytes code = Encode(*codec, DType::kFloat32, values);
    CHECK(Largest(Decode<float>(*codec, DType::kFloat32, code, 10000), values) <= tolerance);
    if (tolerance > 1e-5) CHECK(code[0] == std::byte{1});
  }
  const auto rate = Find("zfp:rate=8");
  CHECK(rate == Find("zfp"));
  const Bytes code = Encode(*rate, DType::kFloat32, values);
  CHECK_EQ(code.size(), 10001);   // 2500 blocks of 32 bits
  CHECK_EQ(code.size(), rate->MinEncodedBytes(DType::kFloat32, 10000));
  CHECK(Largest(Decode<float>(*rate, DType::kFloat32, code, 10000), values) < 0.01);
  const auto precise = Find("zfp:precision=16");
  const Bytes planes = Encode(*precise, DType::kFloat32, values);
  CHECK(Largest(Decode<float>(*precise, DType::kFloat32, planes, 10000), values) < 1e-4);
}

TEST(codec_zfp_keeps_golden_bytes_and_refuses_invalid_ones) {
  const auto codec = Find("zfp:rate=16");
  if (codec == nullptr) return;
  // Four blocks of four values of 64 bits each.
  std::vector<float> values;
  for (int i = 0; i < 16; ++i) values.push_back(static_cast<float>(i) - 4);
  const Bytes golden = FromHex(
      "01055917000000000003ed14000000000005ad2e000000000007ad4e0100000000");
  CHECK(Decode<float>(*codec, DType::kFloat32, golden, 16) == values);
  std::vector<float> out(16);
  const auto refused = [&](const Bytes& code) {
    return codec->Decode(DType::kFloat32, code, out.data(), 16, Context()).code() ==
           Code::kDataLoss;
  };
  CHECK(refused(Bytes(golden.begin(), golden.end() - 8)));
  Bytes longer = golden;
  longer.resize(golden.size() + 8);
  CHECK(refused(longer));
  Bytes mode = golden;
  mode[0] = std::byte{2};
  CHECK(refused(mode));
  // Values with NaN are stored.
  values[3] = std::numeric_limits<float>::quiet_NaN();
  const Bytes stored = Encode(*codec, DType::kFloat32, values);
  CHECK_EQ(stored.size(), 65);
  CHECK(stored[0] == std::byte{0});
  CHECK(std::isnan(Decode<float>(*codec, DType::kFloat32, stored, 16)[3]));
}

}  // namespace
}  // namespace jaxccomp
