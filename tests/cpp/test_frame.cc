// Valid, truncated, altered and random frames. The Python tests cover dtypes, shapes and golden
// files; these tests run millions of times, under sanitizers.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "codec/frame.h"
#include "codec_contract.h"
#include "common/crc32c.h"
#include "decode_one.h"

namespace jaxccomp {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Weights(int64_t count) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  Bytes bytes(count * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Bytes FrameOf(const std::string& spec, int64_t count, int64_t chunk_values, bool checksum,
              bool delta) {
  const auto header = MakeFrameHeader(spec, "float32", {count}, chunk_values, checksum, delta);
  if (!CHECK_OK(header)) return {};
  const Bytes values = Weights(count), ref(values.size());
  Bytes frame(MaxFrameBytes(*header));
  Workspace workspace;
  const auto bytes = EncodeFrame(*header, values.data(), delta ? ref.data() : nullptr, {1, 2, 3},
                                 frame, workspace);
  if (!CHECK_OK(bytes)) return {};
  frame.resize(*bytes);
  return frame;
}

// The status of decoding a frame. The memory is allocated from the header's size.
Status DecodeAll(std::span<const std::byte> frame, Workspace& workspace) {
  const auto header = ReadFrameHeader(frame);
  if (!header.ok()) return header.status();
  if (header->value_bytes() > 1 << 24) return Status::Ok();   // valid, but too large to decode here
  Bytes values(header->value_bytes());
  const Bytes ref(header->delta ? values.size() : 0);
  return DecodeFrame(*header, frame, header->delta ? ref.data() : nullptr, values.data(),
                     workspace);
}

// JAXCCOMP_MUTATIONS: the number of altered frames.
int64_t Mutations() {
  const char* text = std::getenv("JAXCCOMP_MUTATIONS");
  return text != nullptr ? std::atoll(text) : 100000;
}

TEST(frame_crc32c_matches_the_test_vectors_of_rfc_3720) {
  // The check value of the polynomial, and the test vectors of RFC 3720, B.4.
  const std::string digits = "123456789";
  const auto bytes = std::as_bytes(std::span(digits));
  CHECK_EQ(Crc32c(bytes), 0xe3069283u);
  CHECK_EQ(GenericCrc32c(bytes), 0xe3069283u);
  CHECK_EQ(Crc32c(Bytes(32)), 0x8a9136aau);
  CHECK_EQ(Crc32c(Bytes(32, std::byte{0xff})), 0x62a8ab43u);
  CHECK_EQ(Crc32c({}), 0u);
  const Bytes long_one = Weights(20000);
  for (size_t n : {1u, 7u, 8u, 6143u, 6144u, 6145u, 12288u, 80000u}) {
    const auto part = std::span(long_one).first(n);
    CHECK_EQ(Crc32c(part), GenericCrc32c(part));
    CHECK_EQ(Crc32c(part.subspan(n / 3), Crc32c(part.first(n / 3))), Crc32c(part));
  }
}

TEST(frame_decoder_refuses_every_prefix) {
  Workspace workspace;
  for (const std::string& spec : testing::SpecsToTest()) {
    for (bool checksum : {false, true}) {
      const Bytes frame = FrameOf(spec, 300, 128, checksum, false);
      CHECK_OK(DecodeAll(frame, workspace));
      for (size_t n = 0; n < frame.size(); ++n) {
        const Bytes prefix(frame.begin(), frame.begin() + static_cast<int64_t>(n));
        if (!CHECK_EQ(DecodeAll(prefix, workspace).code(), Code::kDataLoss)) break;
      }
    }
  }
}

TEST(frame_decoder_survives_altered_frames) {
  Workspace workspace;
  std::mt19937_64 random(17);
  const std::vector<std::string> specs = testing::SpecsToTest();
  std::vector<Bytes> frames;
  for (const std::string& spec : specs) {
    frames.push_back(FrameOf(spec, 300, 128, false, false));
    frames.push_back(FrameOf(spec, 70, 1000, false, true));
  }
  frames.push_back(FrameOf("lossless", 20000, 1 << 20, false, false));
  const int64_t mutations = Mutations();
  int64_t decoded = 0, refused = 0;
  for (int64_t i = 0; i < mutations; ++i) {
    const Bytes& source = frames[random() % frames.size()];
    Bytes frame = source;
    const auto places = i % 3 == 0 ? std::min<size_t>(frame.size(), 64) : frame.size();
    for (auto n = 1 + random() % 4; n > 0; --n) {
      std::byte& at = frame[random() % places];
      // A flipped bit, a random byte, or a byte from another place.
      switch (random() % 3) {
        case 0: at ^= std::byte{1} << (random() % 8); break;
        case 1: at = static_cast<std::byte>(random()); break;
        default: at = frame[random() % frame.size()];
      }
    }
    if (i % 16 == 0) frame.resize(random() % (frame.size() + 1));
    const Code code = DecodeAll(frame, workspace).code();
    CHECK(code == Code::kOk || code == Code::kDataLoss || code == Code::kFailedPrecondition ||
          code == Code::kUnavailable);
    ++(code == Code::kOk ? decoded : refused);
  }
  // Both results must be frequent: otherwise payloads were not reached, or always decoded.
  std::printf("frames: %lld mutations, %lld decoded, %lld refused\n",
              static_cast<long long>(mutations), static_cast<long long>(decoded),
              static_cast<long long>(refused));
  CHECK(decoded > mutations / 10 && refused > mutations / 10);
}

TEST(frame_checksums_detect_every_changed_bit) {
  Workspace workspace;
  const Bytes frame = FrameOf("lossless", 300, 128, true, false);
  for (size_t i = 0; i < frame.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes changed = frame;
      changed[i] ^= std::byte{1} << bit;
      CHECK(!DecodeAll(changed, workspace).ok());
    }
  }
}

TEST(frame_decoder_survives_the_fuzzing_corpus) {
  int64_t inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(JAXCCOMP_CORPUS)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)),
                                  std::istreambuf_iterator<char>());
    testing::DecodeOne(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++inputs;
  }
  CHECK(inputs > 0);
}

}  // namespace
}  // namespace jaxccomp
