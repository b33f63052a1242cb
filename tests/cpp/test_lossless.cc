// The codec "lossless": round trips of everything, the same bytes from every kernel table, frames
// that are cut off or altered, and bytes that must never change.
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
#include "codec/lossless/lossless.h"

namespace jaxccomp {
namespace {

using lossless::Decoder;
using lossless::Kernels;
using lossless::Layout;
using lossless::RunnableKernels;

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

// Every table encodes `values` to the same bytes, no more than the words and the headers, and
// decodes them. Returns the encoding.
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

// The kinds of values that the tests are made of.
enum class Kind { kConstant, kNoise, kGaussian, kSpecial, kSmall, kSparse, kChanging };
constexpr Kind kKinds[] = {Kind::kConstant, Kind::kNoise,  Kind::kGaussian, Kind::kSpecial,
                           Kind::kSmall,    Kind::kSparse, Kind::kChanging};

uint64_t Pattern(DType dtype, double value) {
  const auto single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, 4);
  switch (dtype) {
    case DType::kBFloat16: return bits >> 16;
    case DType::kFloat16: {
      const uint64_t exponent = std::max<int64_t>((bits >> 23 & 255) - 112, 0);
      return bits >> 31 << 15 | exponent << 10 | (bits >> 13 & 1023);
    }
    case DType::kFloat32:
    case DType::kComplex64: return bits;
    case DType::kFloat64:
    case DType::kComplex128: {
      uint64_t wide;
      std::memcpy(&wide, &value, 8);
      return wide;
    }
    default: return static_cast<uint64_t>(static_cast<int64_t>(value * 1000));
  }
}

// Zeros, denormals, infinities, NaN with payload and the largest finite value, of either sign.
uint64_t SpecialPattern(DType dtype, Random& random) {
  const int mantissa = dtype == DType::kBFloat16                                       ? 7
                       : dtype == DType::kFloat16                                      ? 10
                       : dtype == DType::kFloat64 || dtype == DType::kComplex128       ? 52
                                                                                       : 23;
  const int bits = 8 * lossless::Info(lossless::LayoutOf(dtype).layout).word_bytes;
  const uint64_t sign = (random() & 1) << (bits - 1);
  const uint64_t low = random() & ((uint64_t{1} << mantissa) - 1);
  const uint64_t infinity = ((uint64_t{1} << (bits - 1)) - 1) >> mantissa << mantissa;
  switch (random() % 5) {
    case 0: return sign;
    case 1: return sign | low;
    case 2: return sign | infinity;
    case 3: return sign | infinity | low;
    default: return sign | (infinity - 1);
  }
}

std::vector<std::byte> Values(DType dtype, int64_t count, Kind kind, uint64_t seed) {
  Random random(seed);
  std::normal_distribution<double> normal(0, 0.02);
  const int64_t word_bytes = lossless::Info(lossless::LayoutOf(dtype).layout).word_bytes;
  std::vector<std::byte> values(count * SizeBytes(dtype));
  const uint64_t constant = random();
  for (size_t i = 0; i < values.size(); i += word_bytes) {
    uint64_t word = constant;
    switch (kind) {
      case Kind::kConstant: break;
      case Kind::kNoise: word = random(); break;
      case Kind::kGaussian: word = Pattern(dtype, normal(random)); break;
      case Kind::kSpecial: word = SpecialPattern(dtype, random); break;
      case Kind::kSmall: word = random() % 5; break;
      case Kind::kSparse: word = random() % 50 == 0 ? random() & 3 : 0; break;
      // What a sample of a segment says of it does not hold for its blocks.
      case Kind::kChanging:
        word = i / 5000 % 3 == 0 ? random() : i / 5000 % 3 == 1 ? 0 : Pattern(dtype, normal(random));
        break;
    }
    if (dtype == DType::kBool) word &= 1;
    for (int64_t b = 0; b < word_bytes; ++b) values[i + b] = static_cast<std::byte>(word >> 8 * b);
  }
  return values;
}

template <typename F>
void ForEachDType(F&& f) {
  for (int d = 0; d < kDTypeCount; ++d) f(static_cast<DType>(d));
}

TEST(lossless_round_trip_every_length) {
  ForEachDType([](DType dtype) {
    int kind = 0;
    for (int64_t count = 0; count <= 4097;
         count += count < 300 || (count > 4030 && count < 4097) ? 1 : 61) {
      CheckRoundTrip(dtype, Values(dtype, count, kKinds[kind++ % std::size(kKinds)], count));
    }
    CheckRoundTrip(dtype, Values(dtype, 4096, Kind::kGaussian, 1));
    CheckRoundTrip(dtype, Values(dtype, 4097, Kind::kGaussian, 1));
  });
}

TEST(lossless_round_trip_segments) {
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

TEST(lossless_delta) {
  Random random(6);
  ForEachDType([&](DType dtype) {
    for (int64_t count : {0, 1, 63, 64, 1000, 4096, 9001}) {
      const std::vector<std::byte> ref = Values(dtype, count, Kind::kGaussian, 3);
      CheckRoundTrip(dtype, Values(dtype, count, Kind::kNoise, 4), &ref);
      // One byte in twenty differs in its last bits.
      std::vector<std::byte> values = ref;
      for (std::byte& b : values) {
        if (random() % 20 == 0) b ^= static_cast<std::byte>(random() & 3);
      }
      const std::vector<std::byte> code = CheckRoundTrip(dtype, values, &ref);
      if (count >= 1000) CHECK(code.size() < values.size() / 2);

      // The reference may be overwritten by what is decoded.
      LosslessWorkspace workspace;
      std::vector<std::byte> in_place = ref;
      CHECK_OK(LosslessDecode(dtype, code, in_place.data(), in_place.data(), count, workspace));
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

TEST(lossless_unaligned) {
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

TEST(lossless_ratios) {
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

  // float32 whose low halves are zero, as casts from bfloat16 are.
  std::vector<std::byte> values = Values(DType::kFloat32, 1 << 17, Kind::kGaussian, 11);
  for (size_t i = 0; i < values.size(); i += 4) values[i] = values[i + 1] = std::byte{0};
  CHECK(CheckRoundTrip(DType::kFloat32, values).size() * 2.9 < values.size());
}

TEST(lossless_every_prefix_fails) {
  ForEachDType([](DType dtype) {
    for (Kind kind : kKinds) {
      const int64_t count = 700;
      const std::vector<std::byte> values = Values(dtype, count, kind, 12);
      const std::vector<std::byte> code =
          Encoded(*RunnableKernels()[0], dtype, values.data(), nullptr, count);
      std::vector<std::byte> decoded;
      for (size_t n = 0; n < code.size(); ++n) {
        // A copy of its own, so that a sanitizer sees the first byte past it.
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

// Altered frames give an error or other values, the same with every table, and touch nothing
// outside of their memory. JAXCCOMP_MUTATIONS sets how many.
TEST(lossless_mutations) {
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
        // Stored frames have nothing to get wrong but their header.
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
      // Headers and indices stand in front: most changes go there.
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

TEST(lossless_refuses) {
  LosslessWorkspace workspace;
  std::byte small[16] = {};
  CHECK_EQ(LosslessEncode(DType::kFloat32, small, nullptr, 4, small, workspace).status().code(),
           Code::kInvalidArgument);
  for (int64_t count : {int64_t{-1}, INT64_MAX, INT64_MAX / 4}) {
    CHECK_EQ(LosslessEncode(DType::kFloat32, small, nullptr, count, small, workspace)
                 .status().code(),
             Code::kInvalidArgument);
    CHECK(!LosslessDecode(DType::kFloat32, small, nullptr, small, count, workspace).ok());
  }
}

}  // namespace
}  // namespace jaxccomp
