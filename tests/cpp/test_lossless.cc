// The codec "lossless": round trips, equal bytes from every kernel table, damaged frames, and golden bytes.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "codec/lossless/decode.h"
#include "codec/lossless/encode.h"
#include "codec/lossless/kernels.h"
#include "codec/registry.h"
#include "lossless_values.h"

namespace jaxccomp {
namespace {

using lossless::Decoder;
using lossless::Kernels;
using lossless::Layout;
using lossless::RunnableKernels;
using testing::Kind;

constexpr std::byte kGuard{0x5a};
constexpr int64_t kGuardBytes = 72;

lossless::Workspace& TheWorkspace() {
  static const auto workspace = std::make_unique<lossless::Workspace>();
  return *workspace;
}

std::vector<std::byte> Encoded(const Kernels& kernels, DType dtype, const void* src,
                               const void* ref, int64_t count) {
  const auto [layout, words] = lossless::LayoutOf(dtype);
  const int64_t most = lossless::EncodeBoundBytes(layout, count * words);
  std::vector<std::byte> code(most + kGuardBytes, kGuard);
  const int64_t size =
      lossless::Encode(kernels, layout, src, ref, count * words, code.data(), TheWorkspace());
  CHECK(std::all_of(code.begin() + most, code.end(), [](std::byte b) { return b == kGuard; }));
  code.resize(size);
  return code;
}

// Decodes into memory that is one byte off alignment and guarded on both sides.
Status Decoded(const Kernels& kernels, DType dtype, std::span<const std::byte> code,
               const void* ref, int64_t count, std::vector<std::byte>& values) {
  const auto [layout, words] = lossless::LayoutOf(dtype);
  const int64_t bytes = count * SizeBytes(dtype);
  values.assign(bytes + 1 + kGuardBytes, kGuard);
  Decoder decoder(kernels, TheWorkspace());
  Status status = decoder.Open(layout, code, count * words, ref != nullptr);
  auto* from = static_cast<const std::byte*>(ref);
  for (std::byte* at = values.data() + 1; status.ok() && decoder.next_words() > 0;) {
    const int64_t n = decoder.next_words() * lossless::Info(layout).word_bytes;
    status = decoder.Next(at, from);
    at += n;
    if (from != nullptr) from += n;
  }
  CHECK(values[0] == kGuard);
  CHECK(std::all_of(values.begin() + 1 + bytes, values.end(),
                    [](std::byte b) { return b == kGuard; }));
  values.erase(values.begin());
  values.resize(bytes);
  return status;
}

// Checks that every table encodes `values` to the same bytes, at most the size of words and headers, and decodes them.
// Returns the encoding.
std::vector<std::byte> CheckRoundTrip(DType dtype, const std::vector<std::byte>& values,
                                      const std::vector<std::byte>* ref = nullptr) {
  const int64_t count = static_cast<int64_t>(values.size()) / SizeBytes(dtype);
  const void* const other = ref == nullptr ? nullptr : ref->data();
  std::vector<std::byte> first, decoded;
  for (const Kernels* kernels : RunnableKernels()) {
    const std::vector<std::byte> code = Encoded(*kernels, dtype, values.data(), other, count);
    if (first.empty()) first = code;
    CHECK(code == first);
    CHECK_OK(Decoded(*kernels, dtype, code, other, count, decoded));
    CHECK(decoded == values);
  }
  const int64_t words = count * lossless::LayoutOf(dtype).words;
  const int64_t segments = (words + lossless::kSegmentWords - 1) / lossless::kSegmentWords;
  CHECK(std::cmp_less_equal(first.size(),
                            values.size() + lossless::kChunkHeaderBytes + segments));
  return first;
}

using Random = std::mt19937_64;

constexpr Kind kKinds[] = {Kind::kConstant, Kind::kNoise,  Kind::kGaussian, Kind::kSpecial,
                           Kind::kSmall,    Kind::kSparse, Kind::kChanging};

std::vector<std::byte> Values(DType dtype, int64_t count, Kind kind, uint64_t seed) {
  const auto [layout, words] = lossless::LayoutOf(dtype);
  std::vector<std::byte> values = testing::LosslessValues(layout, count * words, kind, seed);
  if (dtype == DType::kBool) {
    for (std::byte& b : values) b &= std::byte{1};
  }
  return values;
}

template <typename F>
void ForEachDType(F&& f) {
  for (int d = 0; d < kDTypeCount; ++d) f(static_cast<DType>(d));
}

TEST(lossless_round_trips_every_length) {
  ForEachDType([](DType dtype) {
    int kind = 0;
    for (int64_t count = 0; count <= 4097; ++count) {
      CheckRoundTrip(dtype, Values(dtype, count, kKinds[kind++ % std::size(kKinds)], count));
    }
    CheckRoundTrip(dtype, Values(dtype, 4096, Kind::kGaussian, 1));
    CheckRoundTrip(dtype, Values(dtype, 4097, Kind::kGaussian, 1));
  });
}

TEST(lossless_round_trips_several_segments) {
  Random random(5);
  ForEachDType([&](DType dtype) {
    for (Kind kind : kKinds) {
      CheckRoundTrip(dtype, Values(dtype, random() % 40000, kind, random()));
    }
    const int64_t edge = lossless::kSegmentWords / lossless::LayoutOf(dtype).words;
    for (int64_t count : {edge, edge + 1}) {
      CheckRoundTrip(dtype, Values(dtype, count, Kind::kGaussian, count));
    }
    CheckRoundTrip(dtype, Values(dtype, 2 * edge + random() % 5000, Kind::kChanging, 8));
  });
}

// A block of noise in a compressible segment: the block is sent raw, or the whole segment is stored.
TEST(lossless_stores_a_block_of_noise) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64,
                      DType::kComplex64, DType::kInt16}) {
    const int64_t block_bytes =
        lossless::kBlockWords * lossless::Info(lossless::LayoutOf(dtype).layout).word_bytes;
    const Kind kind = dtype == DType::kInt16 ? Kind::kSmall : Kind::kGaussian;
    std::vector<std::byte> values = Values(dtype, lossless::kSegmentWords, kind, 15);
    const std::vector<std::byte> quiet = CheckRoundTrip(dtype, values);
    const std::vector<std::byte> noise = Values(dtype, lossless::kBlockWords, Kind::kNoise, 16);
    std::copy(noise.begin(), noise.begin() + block_bytes, values.end() - block_bytes);
    const std::vector<std::byte> code = CheckRoundTrip(dtype, values);
    CHECK(code.size() > quiet.size());
    CHECK(code.size() <= values.size() + 9);
    if (dtype == DType::kBFloat16 || dtype == DType::kFloat32) CHECK(code.size() < values.size());
  }
}

// A plane that is constant in one segment, raw and narrow in the next, and constant with the same symbol in the third:
// no state of the second may remain in the third.
TEST(lossless_round_trips_a_constant_segment_after_a_raw_one) {
  for (DType dtype : {DType::kFloat16, DType::kFloat64}) {
    const int64_t words = lossless::kSegmentWords;
    std::vector<std::byte> values(3 * words * SizeBytes(dtype));
    const std::vector<std::byte> middle = Values(dtype, words, Kind::kGaussian, 22);
    std::copy(middle.begin(), middle.end(), values.begin() + words * SizeBytes(dtype));
    CheckRoundTrip(dtype, values);
  }
}

TEST(lossless_round_trips_differences_to_a_base) {
  Random random(6);
  ForEachDType([&](DType dtype) {
    for (int64_t count : {0, 1, 63, 64, 1000, 4096, 9001}) {
      const std::vector<std::byte> ref = Values(dtype, count, Kind::kGaussian, 3);
      CheckRoundTrip(dtype, Values(dtype, count, Kind::kNoise, 4), &ref);
      // The last bits of one byte in twenty differ.
      std::vector<std::byte> values = ref;
      for (std::byte& b : values) {
        if (random() % 20 == 0) b ^= static_cast<std::byte>(random() & 3);
      }
      const std::vector<std::byte> code = CheckRoundTrip(dtype, values, &ref);
      if (count >= 1000) CHECK(code.size() < values.size() / 2);

      // Decoding may overwrite the delta base.
      Workspace workspace;
      CodingContext context(workspace);
      std::vector<std::byte> in_place = ref;
      context.ref = in_place.data();
      CHECK_OK((*LookupCodec("lossless"))->Decode(dtype, code, in_place.data(), count, context));
      CHECK(in_place == values);
      if (count == 0) continue;
      std::vector<std::byte> decoded;
      CHECK_EQ(Decoded(*RunnableKernels()[0], dtype, code, nullptr, count, decoded).code(),
               Code::kDataLoss);
      const std::vector<std::byte> whole = CheckRoundTrip(dtype, values);
      CHECK_EQ(Decoded(*RunnableKernels()[0], dtype, whole, ref.data(), count, decoded).code(),
               Code::kDataLoss);
    }
  });
}

TEST(lossless_kernels_accept_unaligned_memory) {
  ForEachDType([](DType dtype) {
    const int64_t count = 1500;
    const std::vector<std::byte> values = Values(dtype, count, Kind::kGaussian, 9);
    const std::vector<std::byte> ref = Values(dtype, count, Kind::kSparse, 9);
    for (const Kernels* kernels : RunnableKernels()) {
      const auto expected = Encoded(*kernels, dtype, values.data(), ref.data(), count);
      for (int64_t offset : {1, 3, 31, 63}) {
        std::vector<std::byte> moved(offset), other(offset);
        moved.insert(moved.end(), values.begin(), values.end());
        other.insert(other.end(), ref.begin(), ref.end());
        CHECK(Encoded(*kernels, dtype, moved.data() + offset, other.data() + offset, count) ==
              expected);
        std::vector<std::byte> code(offset), decoded;
        code.insert(code.end(), expected.begin(), expected.end());
        CHECK_OK(Decoded(*kernels, dtype, std::span(code).subspan(offset), other.data() + offset,
                         count, decoded));
        CHECK(decoded == values);
      }
    }
  });
}

TEST(lossless_reaches_the_minimum_ratios) {
  const auto ratio = [](DType dtype, Kind kind) {
    const std::vector<std::byte> values = Values(dtype, 1 << 17, kind, 11);
    return static_cast<double>(values.size()) /
           static_cast<double>(CheckRoundTrip(dtype, values).size());
  };
  CHECK(ratio(DType::kBFloat16, Kind::kGaussian) > 1.49);
  CHECK(ratio(DType::kFloat16, Kind::kGaussian) > 1.16);
  CHECK(ratio(DType::kFloat32, Kind::kGaussian) > 1.195);
  CHECK(ratio(DType::kFloat64, Kind::kGaussian) > 1.14);
  CHECK(ratio(DType::kComplex64, Kind::kGaussian) > 1.195);
  ForEachDType([&](DType dtype) { CHECK(ratio(dtype, Kind::kConstant) > 100); });
  CHECK(ratio(DType::kInt32, Kind::kSmall) > 10);
  CHECK(ratio(DType::kInt64, Kind::kSparse) > 50);

  // float32 with zero low halves, as in casts from bfloat16.
  std::vector<std::byte> values = Values(DType::kFloat32, 1 << 17, Kind::kGaussian, 11);
  for (size_t i = 0; i < values.size(); i += 4) values[i] = values[i + 1] = std::byte{0};
  CHECK(CheckRoundTrip(DType::kFloat32, values).size() * 2.9 < values.size());
}

TEST(lossless_decoder_refuses_every_prefix) {
  ForEachDType([](DType dtype) {
    for (Kind kind : kKinds) {
      const int64_t count = 700;
      const std::vector<std::byte> values = Values(dtype, count, kind, 12);
      const std::vector<std::byte> code =
          Encoded(*RunnableKernels()[0], dtype, values.data(), nullptr, count);
      std::vector<std::byte> decoded;
      for (size_t n = 0; n < code.size(); ++n) {
        // A copy, so that a sanitizer detects a read past the prefix.
        const std::vector<std::byte> prefix(code.begin(), code.begin() + n);
        const Kernels& kernels = *RunnableKernels()[n % RunnableKernels().size()];
        if (!CHECK_EQ(Decoded(kernels, dtype, prefix, nullptr, count, decoded).code(),
                      Code::kDataLoss)) {
          return;
        }
      }
    }
  });
}

// Altered frames give an error or other values, the same with every table, and no access out of bounds.
// JAXCCOMP_MUTATIONS sets their number.
TEST(lossless_kernels_judge_altered_frames_alike) {
  const char* const text = std::getenv("JAXCCOMP_MUTATIONS");
  const int64_t mutations = text != nullptr ? std::atoll(text) : 100000;
  struct Original {
    DType dtype;
    int64_t count;
    std::vector<std::byte> code;
  };
  std::vector<Original> originals;
  ForEachDType([&](DType dtype) {
    for (Kind kind : kKinds) {
      for (int64_t count : {70, 700, 4500}) {
        const std::vector<std::byte> values = Values(dtype, count, kind, 13);
        const auto code = Encoded(*RunnableKernels()[0], dtype, values.data(), nullptr, count);
        // Only the header of a stored frame can be invalid.
        if (kind == Kind::kNoise && count > 70) continue;
        if (count < 4500 || code.size() < 8000) originals.push_back({dtype, count, code});
      }
    }
  });

  Random random(14);
  int64_t refused = 0, accepted = 0;
  std::vector<std::byte> decoded, again;
  for (int64_t m = 0; m < mutations; ++m) {
    const Original& original = originals[random() % originals.size()];
    std::vector<std::byte> code = original.code;
    for (uint64_t changes = 1 + random() % 3; changes > 0 && !code.empty(); --changes) {
      // Most changes go to headers and indices, at the front.
      const uint64_t reach = random() % 4 == 0 ? code.size() : std::min<uint64_t>(code.size(), 80);
      const uint64_t at = random() % reach;
      switch (random() % 5) {
        case 0: code[at] ^= static_cast<std::byte>(1 << random() % 8); break;
        case 1: code[at] = static_cast<std::byte>(random()); break;
        case 2: code[at] = random() % 2 ? std::byte{0} : std::byte{0xff}; break;
        case 3: code.erase(code.begin() + at); break;
        default: code.insert(code.begin() + at, static_cast<std::byte>(random())); break;
      }
    }
    code.shrink_to_fit();
    const size_t tables = RunnableKernels().size();
    const Kernels& kernels = *RunnableKernels()[m % tables];
    const Status status =
        Decoded(kernels, original.dtype, code, nullptr, original.count, decoded);
    if (!CHECK(status.ok() || status.code() == Code::kDataLoss)) return;
    ++(status.ok() ? accepted : refused);
    if (m % 8 != 0) continue;
    const Status other = Decoded(*RunnableKernels()[(m + 1) % tables], original.dtype, code,
                                 nullptr, original.count, again);
    if (!CHECK_EQ(other.code(), status.code()) || (status.ok() && !CHECK(again == decoded))) return;
  }
  CHECK(mutations < 1000 || (refused > mutations / 4 && accepted > mutations / 100));
}

// Encodings of version 1, never regenerated: all later versions must decode them.
struct Golden {
  DType dtype;
  int64_t count;
  bool delta;
  std::string_view hex;
};

// Compressible words: exponents fall off geometrically, and few other bits are set.
std::vector<std::byte> GoldenValues(DType dtype, int64_t count) {
  std::vector<std::byte> values(count * SizeBytes(dtype));
  const int64_t word_bytes = lossless::Info(lossless::LayoutOf(dtype).layout).word_bytes;
  uint32_t state = 7;
  const auto next = [&state] { return (state = state * 1664525 + 1013904223) >> 8; };
  for (size_t i = 0; i < values.size(); i += word_bytes) {
    const int drop = __builtin_ctz(next() | 256);
    const uint64_t sign = next() & 1, fraction = next() & 3;
    uint64_t word = fraction << drop;
    if (dtype == DType::kBFloat16) word = sign << 15 | (121 - drop) << 7 | fraction << 5;
    if (dtype == DType::kFloat16) word = sign << 15 | (12 - drop) << 10 | fraction << 8;
    if (dtype == DType::kFloat32) word = sign << 31 | (121 - drop) << 23 | fraction << 21;
    if (dtype == DType::kFloat64) word = sign << 63 | uint64_t(1017 - drop) << 52 | fraction << 50;
    for (int64_t b = 0; b < word_bytes; ++b) values[i + b] = static_cast<std::byte>(word >> 8 * b);
  }
  return values;
}

std::string ToHex(const std::vector<std::byte>& bytes) {
  std::string hex;
  for (std::byte b : bytes) {
    hex += "0123456789abcdef"[static_cast<int>(b) >> 4];
    hex += "0123456789abcdef"[static_cast<int>(b) & 15];
  }
  return hex;
}

TEST(lossless_keeps_its_golden_bytes) {
  static constexpr Golden kGolden[] = {
      {DType::kBFloat16, 70, false,
       "0104000046000000015a00000180c14140c0815505797877767475020024000b000500000002002b"
       "00110009000300010000005b7d4f6b85fe9dbb7a7e9fc157ef5f3b3e3ce1bdc92907329f29410db2"
       "020072ebeadb756c7c4d3a0b1311d5aa0083d7000e000100"},
      {DType::kBFloat16, 5, false,
       "01040000050000000080bc20bb803ca03ce0ba"},
      {DType::kFloat16, 130, false,
       "010500008200000001010000000055050c0b0a09070800000000020043001d000f00030001000000"
       "5a3c074104e61d3b704a9ec0572f5e225371486b81be99abf8d62dcf8accf5911444faa2316b706e"
       "4ebd988e5c6f4e7d02020372ebeadb756c7c4d7a0150419e07d64f000b1311d5aab8d0ad0083d7e8"
       "120e000100"},
      {DType::kFloat32, 100, false,
       "0106000064000000010100000100005a00018040c10041c081550579787776747500000000000000"
       "00020036001100080000000200390018000c00030001000000f6fa7faffef57b6ddeec2defdff532"
       "755dfa397404fdbd9af5063e99b9a4e6720d2de1fc4a80f70f996a000052cb776ecadb7e4d7a509e"
       "d60141956335a218b201979a1c0c010100"},
      {DType::kFloat32, 200, true,
       "01060100c800000001050000010500000105000002050000021b00060000001b0006000000170005"
       "00000017000500000009902400010204081020009021400102048010200400094009004080100204"
       "0010099000800102040800"},
      {DType::kFloat64, 67, false,
       "0107000043000000010100000100000100000100000100000100005a000008101c14040c18010000"
       "5505797877767475000000000000000000000000000000000000000000000000020021000a000500"
       "0000000000000200280011000900030001000000fef6deb357e3593d5feddebb41fba5b50406bd3c"
       "cd90010ebe0552018a03001a4fd8fafb265d5f02c14c561996f58a0060010100"},
      {DType::kInt32, 300, false,
       "010200002c010000016a060002010304060c081018304020c001000001000001000002007b002800"
       "0a0006000100000000000000000000000000000072fa5766eeb1592c5aee57a5dfb0583cbcf4b764"
       "4af3ff6e00f61dcd5deff7d8fa58df9a6c8e7ba7e27c2bde68869b85baf68bfee22ad5c10c7a93be"
       "c26c4181d576aebe890ea5ecfbe2c30ecb7fdeca197b537e55e55ccd14490a65bd39db172f962800"
       "e9601a77139e2502b7472cf462a6bc0d4406f2010e1800"},
      {DType::kUInt8, 64, true,
       "010001004000000001050000010b000200000011012000"},
      {DType::kInt64, 0, false,
       "0103000000000000"},
  };
  for (const Golden& golden : kGolden) {
    const std::vector<std::byte> values = GoldenValues(golden.dtype, golden.count);
    std::vector<std::byte> ref = values;
    for (size_t i = 0; i < ref.size(); i += 37) ref[i] ^= std::byte{1};
    CHECK_EQ(ToHex(CheckRoundTrip(golden.dtype, values, golden.delta ? &ref : nullptr)),
             golden.hex);
  }
}

}  // namespace
}  // namespace jaxccomp
