#include "codec_contract.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>

#include "allocations.h"
#include "check.h"
#include "common/half.h"
#include "reduce/residual.h"

namespace jaxccomp::testing {
namespace {

using Bytes = std::vector<std::byte>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::byte kGuard{0x5a};

double ValueAt(DType dtype, const std::byte* at) {
  const auto read = [&]<typename T>(T value) {
    std::memcpy(&value, at, sizeof(T));
    return value;
  };
  switch (dtype) {
    case DType::kFloat16: return ToFloat(Float16{read(uint16_t{})});
    case DType::kBFloat16: return ToFloat(BFloat16{read(uint16_t{})});
    case DType::kFloat32: return read(float{});
    default: return read(double{});
  }
}

void StoreValue(DType dtype, double value, std::byte* at) {
  const auto write = [&](auto v) { std::memcpy(at, &v, sizeof(v)); };
  switch (dtype) {
    case DType::kFloat16: return write(ToFloat16(value).bits);
    case DType::kBFloat16: return write(ToBFloat16(value).bits);
    case DType::kFloat32: return write(static_cast<float>(value));
    default: return write(value);
  }
}

bool IsReal(DType dtype) { return (kRealFloats & SetOf(dtype)) != 0; }

// The largest finite and the smallest positive values.
double Greatest(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return 65504;
    case DType::kBFloat16: return 0x1.fep127;
    case DType::kFloat32: return std::numeric_limits<float>::max();
    default: return std::numeric_limits<double>::max();
  }
}
double Least(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return 0x1p-24;
    case DType::kBFloat16: return 0x1p-133;
    case DType::kFloat32: return std::numeric_limits<float>::denorm_min();
    default: return std::numeric_limits<double>::denorm_min();
  }
}

struct Input {
  std::string_view name;
  double (*value)(DType, std::mt19937&, int64_t i);
};

double Normal(std::mt19937& random) { return std::normal_distribution<double>()(random); }

const Input kInputs[] = {
    {"gaussian", [](DType, std::mt19937& r, int64_t) { return 0.02 * Normal(r); }},
    {"zeros", [](DType, std::mt19937&, int64_t) { return 0.0; }},
    {"negative zeros", [](DType, std::mt19937&, int64_t) { return -0.0; }},
    {"a constant", [](DType, std::mt19937&, int64_t) { return -1.7; }},
    {"one among zeros", [](DType, std::mt19937&, int64_t i) { return i % 61 == 5 ? 3.0 : 0.0; }},
    {"alternating", [](DType d, std::mt19937&, int64_t i) {
       return (i % 2 ? -1 : 1) * Greatest(d);
     }},
    {"subnormal", [](DType d, std::mt19937& r, int64_t) {
       return Least(d) * (static_cast<int>(r() % 41) - 20);
     }},
    {"huge spread", [](DType d, std::mt19937& r, int64_t) {
       const double low = std::log2(Least(d)), high = std::log2(Greatest(d));
       const double exponent = low + (high - low) * (r() / 4294967296.0);
       return std::min(std::exp2(exponent), Greatest(d)) * (r() % 2 ? 1 : -1);
     }},
    {"some infinite", [](DType, std::mt19937& r, int64_t i) {
       return i % 50 == 7 ? (r() % 2 ? kInf : -kInf) : Normal(r);
     }},
    {"some NaN", [](DType, std::mt19937& r, int64_t i) {
       return i % 200 == 3 ? (r() % 2 ? kNaN : -kNaN) : Normal(r);
     }},
    {"one NaN", [](DType, std::mt19937& r, int64_t i) { return i == 0 ? kNaN : Normal(r); }},
    {"all infinite", [](DType, std::mt19937&, int64_t) { return kInf; }},
};

Bytes MakeReal(const Input& input, DType dtype, int64_t count) {
  std::mt19937 random(static_cast<uint32_t>(count) * 31 + static_cast<uint32_t>(dtype));
  const int64_t size = SizeBytes(dtype);
  Bytes values(count * size);
  for (int64_t i = 0; i < count; ++i) {
    StoreValue(dtype, input.value(dtype, random, i), values.data() + i * size);
  }
  return values;
}

Bytes MakeAny(DType dtype, int64_t count, uint32_t mask) {
  std::mt19937 random(static_cast<uint32_t>(count) + mask);
  Bytes values(count * SizeBytes(dtype));
  for (auto& b : values) b = static_cast<std::byte>(random() & mask);
  if (dtype == DType::kBool) {
    for (auto& b : values) b &= std::byte{1};
  }
  return values;
}

struct Case {
  const Codec& codec;
  DType dtype;
  std::string_view input;
  int64_t count;

  // Reports a failure: one line for all checks of a case.
  bool Fail(const std::string& what, int line) const {
    return Report(false, __FILE__, line,
                  "codec '" + codec.traits().spec + "', " + std::to_string(count) + " of " +
                      std::string(Name(dtype)) + ", " + std::string(input) + ": " + what);
  }
};

#define REQUIRE(condition, what) \
  do { if (!(condition)) { c.Fail(std::string(#condition) + " " + (what), __LINE__); return; } } while (0)

// |decoded - value| is within the declared bound, and NaN and infinities stay visible.
void CheckBound(const Case& c, const Bytes& values, const Bytes& decoded) {
  if (c.codec.traits().lossless) {
    REQUIRE(values == decoded, "");
    return;
  }
  const ErrorBound bound = c.codec.Bound(c.dtype);
  const int64_t size = SizeBytes(c.dtype);
  const int64_t block = bound.block_values > 0 ? bound.block_values : std::max<int64_t>(c.count, 1);
  for (int64_t begin = 0; begin < c.count; begin += block) {
    const int64_t end = std::min(begin + block, c.count);
    double most = 0;
    bool finite = true;
    for (int64_t i = begin; i < end; ++i) {
      const double x = ValueAt(c.dtype, &values[i * size]);
      finite = finite && std::isfinite(x) && std::fabs(x) <= bound.range;
      if (std::isfinite(x)) most = std::max(most, std::fabs(x));
    }
    for (int64_t i = begin; i < end; ++i) {
      const double x = ValueAt(c.dtype, &values[i * size]);
      const double y = ValueAt(c.dtype, &decoded[i * size]);
      const std::string pair = std::to_string(x) + " became " + std::to_string(y);
      if (!finite && !bound.keeps_nonfinite) {
        REQUIRE(std::isnan(y), "in a block that is not finite, " + pair);
      } else if (std::isnan(x)) {
        REQUIRE(std::isnan(y), pair);
      } else if (std::isinf(x)) {
        REQUIRE(x == y, pair);
      } else if (std::fabs(x) > bound.range) {
        REQUIRE(!std::isnan(y), pair);
      } else {
        const double allowed =
            bound.relative * std::fabs(x) + bound.block * most + bound.absolute;
        REQUIRE(std::fabs(y - x) <= allowed, pair + ", error " + std::to_string(std::fabs(y - x)) +
                                                 " where " + std::to_string(allowed) +
                                                 " is declared");
      }
    }
  }
}

// DecodeMerge equals Decode followed by Reduce.
void CheckMerge(const Case& c, std::span<const std::byte> code, const Bytes& decoded,
                CodingContext& context) {
  if (!CheckReducible(c.dtype, ReduceOp::kSum, false).ok()) return;
  const Bytes start = IsReal(c.dtype) ? MakeReal(kInputs[0], c.dtype, c.count)
                                      : MakeAny(c.dtype, c.count, 255);
  Bytes expected = start, merged = start;
  const void* sources[] = {start.data(), decoded.data()};
  Reduce(c.dtype, ReduceOp::kSum, expected.data(), sources, c.count);
  const Status status = c.codec.DecodeMerge(c.dtype, code, ReduceOp::kSum, c.dtype, merged.data(),
                                            c.count, context);
  REQUIRE(status.ok(), status.message());
  // NaN payloads may differ.
  if (merged != expected) {
    REQUIRE(IsReal(c.dtype), "merged values differ");
    const int64_t size = SizeBytes(c.dtype);
    for (int64_t i = 0; i < c.count; ++i) {
      const double a = ValueAt(c.dtype, &merged[i * size]);
      const double b = ValueAt(c.dtype, &expected[i * size]);
      REQUIRE(a == b || (std::isnan(a) && std::isnan(b)),
              "merged " + std::to_string(a) + " is not " + std::to_string(b));
    }
  }
}

// KeepLost equals AddResidual of the values and the decoded values.
void CheckLost(const Case& c, std::span<const std::byte> code, const Bytes& values, const Bytes& decoded,
               CodingContext& context) {
  if (!IsFloating(c.dtype)) return;
  Bytes lost = values, expected = values;
  const auto kept = c.codec.KeepLost(c.dtype, code, lost.data(), c.count, context);
  REQUIRE(kept.ok(), kept.status().message());
  if (!*kept) return;
  AddResidual(c.dtype, expected.data(), nullptr, values.data(), decoded.data(), c.count, 1);
  const int64_t size = SizeBytes(c.dtype);
  for (int64_t i = 0; i < c.count; ++i) {
    const double a = ValueAt(c.dtype, &lost[i * size]);
    const double b = ValueAt(c.dtype, &expected[i * size]);
    REQUIRE(a == b, "lost " + std::to_string(a) + " is not " + std::to_string(b));
  }
}

void CheckRoundTrip(const Case& c, const Bytes& values, Workspace& workspace) {
  CodingContext context(workspace);
  context.key = {7, 3, 1};
  const int64_t size = SizeBytes(c.dtype);
  const int64_t most = c.codec.MaxEncodedBytes(c.dtype, c.count);
  const int64_t least = c.codec.MinEncodedBytes(c.dtype, c.count);
  REQUIRE(least >= 0 && least <= most, "");
  // Everything unaligned, with guards around.
  Bytes source(values.size() + 1);
  std::copy(values.begin(), values.end(), source.begin() + 1);
  Bytes code(most + 65, kGuard);
  const auto encoded = c.codec.Encode(c.dtype, source.data() + 1, c.count,
                                      {code.data() + 1, static_cast<size_t>(most)}, context);
  REQUIRE(encoded.ok(), encoded.status().message());
  const int64_t bytes = *encoded;
  REQUIRE(bytes >= least && bytes <= most, std::to_string(bytes));
  if (c.codec.traits().fixed_rate) REQUIRE(bytes == most, std::to_string(bytes));
  REQUIRE(code[0] == kGuard && std::all_of(code.begin() + 1 + most, code.end(),
                                           [](std::byte b) { return b == kGuard; }),
          "guard overwritten");
  // Encoding again gives the same bytes, independent of the buffer's old content.
  Bytes again(most, std::byte{0});
  const auto second = c.codec.Encode(c.dtype, values.data(), c.count, again, context);
  REQUIRE(second.ok() && *second == bytes && std::equal(again.begin(), again.begin() + bytes,
                                                        code.begin() + 1), "not repeatable");

  const std::span<const std::byte> wire(code.data() + 1, static_cast<size_t>(bytes));
  Bytes out(values.size() + 2, kGuard);
  Status status = c.codec.Decode(c.dtype, wire, out.data() + 1, c.count, context);
  REQUIRE(status.ok(), status.message());
  REQUIRE(out.front() == kGuard && out.back() == kGuard, "guard overwritten");
  const Bytes decoded(out.begin() + 1, out.end() - 1);
  CheckBound(c, values, decoded);
  CheckMerge(c, wire, decoded, context);
  CheckLost(c, wire, values, decoded, context);

  // Prefixes of an encoding, and encodings with extra bytes, are rejected.
  Bytes scratch(values.size());
  for (int64_t n : {int64_t{0}, int64_t{1}, bytes / 3, bytes / 2, bytes - 1}) {
    if (n < 0 || n >= bytes) continue;
    const Bytes prefix(wire.begin(), wire.begin() + n);
    status = c.codec.Decode(c.dtype, prefix, scratch.data(), c.count, context);
    REQUIRE(status.code() == Code::kDataLoss, "a prefix of " + std::to_string(n) + " decoded");
  }
  Bytes longer(wire.begin(), wire.end());
  longer.push_back(std::byte{0});
  status = c.codec.Decode(c.dtype, longer, scratch.data(), c.count, context);
  REQUIRE(status.code() == Code::kDataLoss, "a byte too many decoded");
  if (c.count * size > 0) {
    status = c.codec.Encode(c.dtype, values.data(), c.count,
                            {code.data(), static_cast<size_t>(most - 1)}, context).status();
    REQUIRE(status.code() == Code::kInvalidArgument, "a short buffer was taken");
  }
}

// A second chunk of the same size allocates nothing.
void CheckAllocations(const Case& c, const Bytes& values, Workspace& workspace) {
  Bytes ref = values, code(c.codec.MaxEncodedBytes(c.dtype, c.count)), out(values.size());
  const bool merges = CheckReducible(c.dtype, ReduceOp::kSum, false).ok();
  CodingContext context(workspace);
  for (const void* reference : {static_cast<const void*>(nullptr),
                                static_cast<const void*>(ref.data())}) {
    context.ref = reference;
    int64_t before = 0;
    for (int round = 0; round < 2; ++round) {
      before = Allocations();
      const auto bytes = c.codec.Encode(c.dtype, values.data(), c.count, code, context);
      REQUIRE(bytes.ok(), bytes.status().message());
      const std::span<const std::byte> wire(code.data(), static_cast<size_t>(*bytes));
      REQUIRE(c.codec.Decode(c.dtype, wire, out.data(), c.count, context).ok(), "");
      if (merges) {
        REQUIRE(c.codec.DecodeMerge(c.dtype, wire, ReduceOp::kSum, c.dtype, out.data(), c.count,
                                    context).ok(), "");
      }
    }
    REQUIRE(Allocations() == before, std::to_string(Allocations() - before) + " allocations");
  }
}

// A difference to a delta base: exact for lossless codecs, otherwise within the bound of the difference and the
// rounding of subtraction and addition. Decoding may overwrite the delta base.
void CheckReference(const Case& c, const Bytes& values, Workspace& workspace) {
  CodingContext context(workspace);
  Bytes ref = values;
  std::mt19937 random(5);
  const int64_t size = SizeBytes(c.dtype);
  for (int64_t i = 0; i < c.count; ++i) {
    if (IsReal(c.dtype)) {
      const double x = ValueAt(c.dtype, &values[i * size]);
      StoreValue(c.dtype, x * (1 + 0.001 * Normal(random)), &ref[i * size]);
    } else if (c.dtype != DType::kBool) {
      ref[i * size] ^= static_cast<std::byte>(random() & 1);
    }
  }
  context.ref = ref.data();
  Bytes code(c.codec.MaxEncodedBytes(c.dtype, c.count));
  const auto bytes = c.codec.Encode(c.dtype, values.data(), c.count, code, context);
  REQUIRE(bytes.ok(), bytes.status().message());
  code.resize(*bytes);
  Bytes decoded(values.size());
  Status status = c.codec.Decode(c.dtype, code, decoded.data(), c.count, context);
  REQUIRE(status.ok(), status.message());
  Bytes in_place = ref;
  context.ref = in_place.data();
  status = c.codec.Decode(c.dtype, code, in_place.data(), c.count, context);
  REQUIRE(status.ok() && in_place == decoded, "decoding over the reference differs");
  if (c.codec.traits().lossless) {
    REQUIRE(decoded == values, "");
    return;
  }
  const ErrorBound bound = c.codec.Bound(c.dtype);
  if (!std::isfinite(bound.relative)) return;
  const double rounding = c.dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
  double max_difference = 0, most = 0;
  for (int64_t i = 0; i < c.count; ++i) {
    const double x = ValueAt(c.dtype, &values[i * size]);
    most = std::max(most, std::fabs(x));
    max_difference = std::max(max_difference, std::fabs(x - ValueAt(c.dtype, &ref[i * size])));
  }
  const double allowed =
      (bound.relative + bound.block) * 1.01 * max_difference + bound.absolute + 3 * rounding * most;
  for (int64_t i = 0; i < c.count; ++i) {
    const double error =
        std::fabs(ValueAt(c.dtype, &decoded[i * size]) - ValueAt(c.dtype, &values[i * size]));
    REQUIRE(error <= allowed, "error " + std::to_string(error) + " of a difference, allowed " +
                                  std::to_string(allowed));
  }
}

// Changed bytes give an error or other values, and never an access out of bounds.
void CheckMutations(const Case& c, const Bytes& values, Workspace& workspace) {
  const CodingContext context(workspace);
  Bytes code(c.codec.MaxEncodedBytes(c.dtype, c.count));
  const auto bytes = c.codec.Encode(c.dtype, values.data(), c.count, code, context);
  REQUIRE(bytes.ok(), bytes.status().message());
  code.resize(*bytes);
  std::mt19937 random(11);
  Bytes out(values.size() + 2, kGuard);
  for (int i = 0; i < 200 && !code.empty(); ++i) {
    Bytes mutated = code;
    for (int n = 1 + static_cast<int>(random() % 4); n > 0; --n) {
      mutated[random() % (i % 2 ? code.size() : std::min<size_t>(code.size(), 24))] =
          static_cast<std::byte>(random());
    }
    if (i % 5 == 0) mutated.resize(random() % (code.size() + 1));
    const Status status = c.codec.Decode(c.dtype, mutated, out.data() + 1, c.count, context);
    REQUIRE(status.ok() || status.code() == Code::kDataLoss, status.message());
    REQUIRE(out.front() == kGuard && out.back() == kGuard, "guard overwritten");
  }
}

void CheckImpossibleCounts(const Codec& codec, DType dtype, Workspace& workspace) {
  const Case c{codec, dtype, "impossible counts", 0};
  const CodingContext context(workspace);
  std::byte some[64] = {};
  for (int64_t count : {int64_t{-1}, std::numeric_limits<int64_t>::max(),
                        std::numeric_limits<int64_t>::max() / 2}) {
    REQUIRE(!codec.Encode(dtype, some, count, some, context).ok(), std::to_string(count));
    REQUIRE(!codec.Decode(dtype, some, some, count, context).ok(), std::to_string(count));
  }
}

}  // namespace

std::vector<std::string> SpecsToTest() {
  std::vector<std::string> specs;
  const auto add = [&](const std::string& spec) {
    const auto codec = LookupCodec(spec);
    if (codec.status().code() == Code::kUnavailable) {
      std::printf("codec '%s' left out: %s\n", spec.c_str(), codec.status().message().c_str());
    } else if (CHECK_OK(codec) && (*codec)->traits().runs_on_host) {
      specs.push_back(spec);
    }
  };
  for (const CodecInfo* row : CodecTable()) {
    const std::string name(row->name);
    add(name);
    for (const CodecOption& option : row->options) {
      const std::string with = name + ":" + std::string(option.name) + "=";
      for (std::string_view choice : option.choices) add(with + std::string(choice));
      if (!option.choices.empty()) continue;
      for (double limit : {option.min, option.max}) {
        char text[32];
        std::snprintf(text, sizeof(text), "%.17g", limit);
        add(with + text);
      }
    }
    if (!row->lossless) add(name + "|lossless");
  }
  add("lossless|lossless");
  return specs;
}

void CheckCodecContract(std::string_view spec) {
  const auto found = LookupCodec(spec);
  if (!CHECK_OK(found)) return;
  const Codec& codec = **found;
  const auto again = LookupCodec(codec.traits().spec);
  CHECK(again.ok() && (*again)->traits().spec == codec.traits().spec);
  Workspace workspace;
  constexpr int64_t kCounts[] = {0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255,
                                 257, 1000, 4097};
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    if (!codec.Supports(dtype)) {
      std::byte some[64] = {};
      CHECK_EQ(codec.Encode(dtype, some, 1, some, CodingContext(workspace)).status().code(),
               Code::kUnimplemented);
      CHECK_EQ(codec.Decode(dtype, some, some, 1, CodingContext(workspace)).code(),
               Code::kUnimplemented);
      continue;
    }
    CheckImpossibleCounts(codec, dtype, workspace);
    for (int64_t count : kCounts) {
      if (!IsReal(dtype)) {
        CheckRoundTrip({codec, dtype, "noise", count}, MakeAny(dtype, count, 255), workspace);
        CheckRoundTrip({codec, dtype, "few bits", count}, MakeAny(dtype, count, 3), workspace);
        CheckReference({codec, dtype, "a reference", count}, MakeAny(dtype, count, 255), workspace);
        CheckAllocations({codec, dtype, "again", count}, MakeAny(dtype, count, 255), workspace);
      } else {
        for (const Input& input : kInputs) {
          CheckRoundTrip({codec, dtype, input.name, count}, MakeReal(input, dtype, count),
                         workspace);
        }
        const Bytes gaussian = MakeReal(kInputs[0], dtype, count);
        CheckReference({codec, dtype, "a reference", count}, gaussian, workspace);
        if (count >= 1000) {
          CheckAllocations({codec, dtype, "again", count}, gaussian, workspace);
        }
        if (count > 0 && count < 300) {
          CheckMutations({codec, dtype, "mutated", count}, gaussian, workspace);
        }
      }
    }
  }
}

}  // namespace jaxccomp::testing
