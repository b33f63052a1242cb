// Reductions on every instruction set of this machine, against a scalar reference.
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "common/half.h"
#include "half_reference.h"
#include "reduce/kernels.h"
#include "reduce/reduce.h"

namespace jaxccomp {
namespace {

using testing::HalfBits;
using testing::HalfFormat;
using testing::HalfValue;
using testing::IsHalfNan;
using testing::kBFloat16Format;
using testing::kFloat16Format;

constexpr int64_t kCounts[] = {0, 1, 7, 64, 1000, 4097};
constexpr int kSourceCounts[] = {1, 2, 3, 7};

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <typename T>
inline constexpr bool kIsComplex = false;
template <typename T>
inline constexpr bool kIsComplex<std::complex<T>> = true;

uint64_t Random(uint64_t& state) {   // splitmix64
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// A float16 value between 1/2 and 2 in magnitude, so that products of a few stay in range.
double RandomReal(uint64_t& state) {
  const uint64_t r = Random(state);
  const double magnitude = std::ldexp(1024 + static_cast<double>(r & 1023), -10 - (r >> 20) % 2);
  return r >> 63 ? -magnitude : magnitude;
}

template <typename T>
T RandomValue(uint64_t& state) {
  if constexpr (std::is_same_v<T, Bool>) {
    return {static_cast<uint8_t>(Random(state) & 1)};
  } else if constexpr (std::is_same_v<T, Float16>) {
    return {HalfBits(RandomReal(state), kFloat16Format)};
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return {HalfBits(RandomReal(state), kBFloat16Format)};
  } else if constexpr (kIsComplex<T>) {
    const double re = RandomReal(state);
    return {static_cast<typename T::value_type>(re * 1.1),
            static_cast<typename T::value_type>(RandomReal(state) / 3)};
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(RandomReal(state) * 1.1);
  } else {
    return static_cast<T>(Random(state));
  }
}

template <typename T>
T RandomBits(uint64_t& state) {
  T value;
  uint64_t words[2] = {Random(state), Random(state)};
  if (std::is_same_v<T, Bool>) words[0] &= 1;
  std::memcpy(static_cast<void*>(&value), words, sizeof(T));
  return value;
}

template <typename T>
T RealReference(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum: return a + b;
    case ReduceOp::kProd: return a * b;
    case ReduceOp::kMin:
      if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? a : b;
      return a == b ? (std::signbit(a) ? a : b) : std::fmin(a, b);
    default:
      if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? a : b;
      return a == b ? (std::signbit(a) ? b : a) : std::fmax(a, b);
  }
}

template <typename T>
T Reference(ReduceOp op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return RealReference(op, a, b);
  } else if constexpr (kIsComplex<T>) {
    if (op == ReduceOp::kSum) return a + b;
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  } else if constexpr (std::is_same_v<T, Bool>) {
    return {Reference<uint8_t>(op, a.bits, b.bits)};
  } else {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    switch (op) {
      case ReduceOp::kSum: return static_cast<T>(x + y);
      case ReduceOp::kProd: return static_cast<T>(x * y);
      case ReduceOp::kMin: return b < a ? b : a;
      case ReduceOp::kMax: return b > a ? b : a;
      case ReduceOp::kAnd: return static_cast<T>(x & y);
      case ReduceOp::kOr: return static_cast<T>(x | y);
      case ReduceOp::kXor: return static_cast<T>(x ^ y);
    }
    return a;
  }
}

// Element i of the reduction of `sources`.
template <typename T>
T ReferenceAll(ReduceOp op, const std::vector<std::vector<T>>& sources, int64_t i,
               int64_t divisor) {
  if constexpr (kIsHalf<T>) {
    const HalfFormat format = std::is_same_v<T, Float16> ? kFloat16Format : kBFloat16Format;
    auto sum = static_cast<float>(HalfValue(sources[0][i].bits, format));
    for (size_t s = 1; s < sources.size(); ++s) {
      sum = RealReference(op, sum, static_cast<float>(HalfValue(sources[s][i].bits, format)));
    }
    if (divisor > 1) sum /= static_cast<float>(divisor);
    return {HalfBits(sum, format)};
  } else {
    T sum = sources[0][i];
    for (size_t s = 1; s < sources.size(); ++s) sum = Reference<T>(op, sum, sources[s][i]);
    if constexpr (std::is_floating_point_v<T>) {
      if (divisor > 1) sum /= static_cast<T>(divisor);
    } else if constexpr (kIsComplex<T>) {
      const auto d = static_cast<typename T::value_type>(divisor);
      if (divisor > 1) sum = {sum.real() / d, sum.imag() / d};
    }
    return sum;
  }
}

// Equal bits, or both NaN.
template <typename T>
bool Same(const T& a, const T& b) {
  if (std::memcmp(&a, &b, sizeof(T)) == 0) return true;
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(a) && std::isnan(b);
  } else if constexpr (kIsComplex<T>) {
    return Same(a.real(), b.real()) && Same(a.imag(), b.imag());
  } else if constexpr (kIsHalf<T>) {
    const HalfFormat format = std::is_same_v<T, Float16> ? kFloat16Format : kBFloat16Format;
    return IsHalfNan(a.bits, format) && IsHalfNan(b.bits, format);
  } else {
    return false;
  }
}

template <typename F>
void ForEachReducible(F&& f) {
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      if (!CheckReducible(dtype, op, false).ok()) continue;
      DispatchArithmetic(dtype, [&](auto tag) { f(tag, dtype, op); });
    }
  }
}

std::string Where(const Kernels& k, DType dtype, ReduceOp op, size_t sources, int64_t count) {
  std::string text = k.name;
  text.append(" ").append(Name(dtype)).append(" ").append(Name(op));
  return text + " sources " + std::to_string(sources) + " count " + std::to_string(count);
}

enum class Target { kApart, kFirst, kSecond, kLast };

// Reduces copies of `sources` at `shift_bytes` after an aligned address, into separate memory or
// into one of them. Compares every element and the bytes around the result.
template <typename T>
void CheckAgainstReference(const Kernels& kernels, DType dtype, ReduceOp op,
                           const std::vector<std::vector<T>>& sources, int64_t divisor,
                           int shift_bytes, Target target) {
  constexpr int kGuard = 64;
  const auto count = static_cast<int64_t>(sources[0].size());
  const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
  std::vector<std::vector<std::byte>> memory(sources.size() + 1);
  std::vector<const void*> pointers;
  for (size_t s = 0; s <= sources.size(); ++s) {
    const int shift = (shift_bytes * static_cast<int>(s + 1)) % 61;
    memory[s].assign(bytes + 2 * kGuard + 64, std::byte{0xa5});
    std::byte* const start = memory[s].data() + kGuard + shift;
    if (s < sources.size()) {
      if (bytes > 0) std::memcpy(start, sources[s].data(), bytes);
    }
    pointers.push_back(start);
  }
  size_t into = sources.size();
  if (target == Target::kFirst) into = 0;
  if (target == Target::kSecond) into = 1 % sources.size();
  if (target == Target::kLast) into = sources.size() - 1;
  auto* const dst = static_cast<std::byte*>(const_cast<void*>(pointers[into]));
  ReduceWith(kernels, dtype, op, dst, {pointers.data(), sources.size()}, count, divisor);

  const std::string where = Where(kernels, dtype, op, sources.size(), count);
  for (int64_t i = 0; i < count; ++i) {
    T got;
    std::memcpy(static_cast<void*>(&got), dst + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    const T expected = ReferenceAll(op, sources, i, divisor);
    if (Same(got, expected)) continue;
    testing::Report(false, __FILE__, __LINE__, where + ": wrong element " + std::to_string(i));
    return;
  }
  for (const std::byte* p = memory[into].data(); p < memory[into].data() + memory[into].size();
       ++p) {
    if ((p >= dst && p < dst + bytes) || *p == std::byte{0xa5}) continue;
    testing::Report(false, __FILE__, __LINE__, where + ": wrote outside the result");
    return;
  }
}

template <typename T>
std::vector<std::vector<T>> RandomSources(size_t sources, int64_t count, uint64_t seed) {
  std::vector<std::vector<T>> values(sources);
  for (auto& source : values) {
    for (int64_t i = 0; i < count; ++i) source.push_back(RandomValue<T>(seed));
  }
  return values;
}

TEST(reduce_op_names_parse) {
  for (int i = 0; i < kReduceOpCount; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    CHECK(ParseReduceOp(Name(op)) == op);
  }
  CHECK(ParseReduceOp("mean") == ReduceOp::kSum);
  CHECK(!ParseReduceOp("average").has_value());
  CHECK(!ParseReduceOp("").has_value());
}

TEST(reduce_check_allows_each_op_for_the_right_dtypes) {
  const auto allowed = [](DType dtype) {
    std::string ops;
    for (int i = 0; i < kReduceOpCount; ++i) {
      const auto op = static_cast<ReduceOp>(i);
      if (CheckReducible(dtype, op, false).ok()) ops.append(Name(op)).append(" ");
    }
    if (CheckReducible(dtype, ReduceOp::kSum, true).ok()) ops += "mean";
    return ops;
  };
  CHECK_EQ(allowed(DType::kBool), "min max and or xor ");
  for (DType d : {DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64, DType::kUInt8,
                  DType::kUInt16, DType::kUInt32, DType::kUInt64}) {
    CHECK_EQ(allowed(d), "sum prod min max and or xor ");
  }
  for (DType d : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    CHECK_EQ(allowed(d), "sum prod min max mean");
  }
  for (DType d : {DType::kComplex64, DType::kComplex128}) CHECK_EQ(allowed(d), "sum prod mean");
  CHECK_EQ(allowed(DType::kOpaque8), "");

  const Status status = CheckReducible(DType::kComplex64, ReduceOp::kMin, false);
  CHECK_EQ(status.code(), Code::kInvalidArgument);
  CHECK_EQ(status.message(),
           "cannot reduce complex64 with 'min': valid are 'sum', 'prod', 'mean'");
  CHECK_EQ(CheckReducible(DType::kBool, ReduceOp::kSum, false).message(),
           "cannot reduce bool with 'sum': valid are 'min', 'max', 'and', 'or', 'xor'; use 'or', "
           "or cast to an integer type to count");
  CHECK_EQ(CheckReducible(DType::kFloat32, ReduceOp::kMax, true).code(), Code::kInvalidArgument);
  CHECK_EQ(CheckReducible(static_cast<DType>(99), ReduceOp::kSum, false).code(),
           Code::kInvalidArgument);
  CHECK_EQ(CheckReducible(DType::kInt32, static_cast<ReduceOp>(7), false).code(),
           Code::kInvalidArgument);
}

TEST(reduce_kernels_cover_all_valid_dtypes_and_ops) {
  CHECK_EQ(std::string_view(RunnableKernels().back()->name), "generic");
  // float16 is combined as float; each other valid combination has a kernel.
  for (const Kernels* k : RunnableKernels()) {
    ForEachReducible([&](auto tag, DType dtype, ReduceOp op) {
      using T = typename decltype(tag)::type;
      const bool present = k->combine[static_cast<int>(dtype)][static_cast<int>(op)] != nullptr;
      CHECK_EQ(present, !(std::is_same_v<T, Float16>));
    });
  }
}

TEST(reduce_matches_reference) {
  for (const Kernels* kernels : RunnableKernels()) {
    ForEachReducible([&](auto tag, DType dtype, ReduceOp op) {
      using T = typename decltype(tag)::type;
      for (int sources : kSourceCounts) {
        for (int64_t count : kCounts) {
          CheckAgainstReference(*kernels, dtype, op, RandomSources<T>(sources, count, count), 1, 0,
                                Target::kApart);
        }
      }
    });
  }
}

TEST(reduce_of_65_sources_matches_reference) {
  for (const Kernels* kernels : RunnableKernels()) {
    ForEachReducible([&](auto tag, DType dtype, ReduceOp op) {
      using T = typename decltype(tag)::type;
      CheckAgainstReference(*kernels, dtype, op, RandomSources<T>(65, 100, 5), 1, 0,
                            Target::kApart);
    });
  }
}

TEST(reduce_mean_matches_reference) {
  for (const Kernels* kernels : RunnableKernels()) {
    ForEachReducible([&](auto tag, DType dtype, ReduceOp op) {
      using T = typename decltype(tag)::type;
      if (!CheckReducible(dtype, op, true).ok()) return;
      for (int sources : kSourceCounts) {
        for (int64_t count : kCounts) {
          for (Target target : {Target::kApart, Target::kFirst}) {
            CheckAgainstReference(*kernels, dtype, op, RandomSources<T>(sources, count, 3), 7, 1,
                                  target);
          }
        }
      }
    });
  }
}

TEST(reduce_accepts_a_source_as_target_and_unaligned_memory) {
  for (const Kernels* kernels : RunnableKernels()) {
    ForEachReducible([&](auto tag, DType dtype, ReduceOp op) {
      using T = typename decltype(tag)::type;
      for (int sources : kSourceCounts) {
        for (int64_t count : {int64_t{65}, int64_t{5003}}) {
          const auto values = RandomSources<T>(sources, count, 11);
          for (Target target : {Target::kFirst, Target::kSecond, Target::kLast}) {
            CheckAgainstReference(*kernels, dtype, op, values, 1, 0, target);
            CheckAgainstReference(*kernels, dtype, op, values, 1, 3, target);
          }
          CheckAgainstReference(*kernels, dtype, op, values, 1, 1, Target::kApart);
        }
      }
    });
  }
}

TEST(reduce_accepts_the_same_source_several_times) {
  std::vector<float> values(3000);
  uint64_t seed = 1;
  for (float& v : values) v = RandomValue<float>(seed);
  for (const Kernels* kernels : RunnableKernels()) {
    std::vector<float> x = values;
    const void* sources[] = {x.data(), x.data(), x.data()};
    ReduceWith(*kernels, DType::kFloat32, ReduceOp::kSum, x.data(), sources, 3000, 1);
    for (size_t i = 0; i < x.size(); ++i) {
      if (!CHECK_EQ(x[i], values[i] + values[i] + values[i])) break;
    }
  }
}

TEST(reduce_of_no_values_accesses_no_memory) {
  const void* sources[] = {nullptr, nullptr};
  Reduce(DType::kFloat32, ReduceOp::kSum, nullptr, sources, 0, 2);
  Reduce(DType::kBFloat16, ReduceOp::kSum, nullptr, {sources, 1}, 0);
}

template <typename T>
std::vector<std::vector<T>> Pairs(const std::vector<T>& values) {
  std::vector<std::vector<T>> sources(2);
  for (const T& a : values) {
    for (const T& b : values) {
      sources[0].push_back(a);
      sources[1].push_back(b);
    }
  }
  return sources;
}

template <typename T>
std::vector<T> SpecialReals() {
  using Limits = std::numeric_limits<T>;
  return {0, T(-0.0), 1, -1, Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(),
          -Limits::quiet_NaN(), Limits::max(), Limits::lowest(), Limits::min(),
          Limits::denorm_min(), -Limits::denorm_min(), T(1) / 3};
}

TEST(reduce_of_special_values_matches_reference) {
  for (const Kernels* kernels : RunnableKernels()) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax}) {
      CheckAgainstReference(*kernels, DType::kFloat32, op, Pairs(SpecialReals<float>()), 1, 0,
                            Target::kApart);
      CheckAgainstReference(*kernels, DType::kFloat64, op, Pairs(SpecialReals<double>()), 1, 0,
                            Target::kApart);
      std::vector<Float16> f16;
      std::vector<BFloat16> bf16;
      for (uint16_t bits : {0x0000, 0x8000, 0x3c00, 0x7c00, 0xfc00, 0x7e01, 0xfd01, 0x7bff, 0x0001,
                            0x8001, 0x03ff, 0x0400}) {
        f16.push_back({bits});
      }
      for (uint16_t bits : {0x0000, 0x8000, 0x3f80, 0x7f80, 0xff80, 0x7fc1, 0xffa1, 0x7f7f, 0x0001,
                            0x8001, 0x007f, 0x0080}) {
        bf16.push_back({bits});
      }
      CheckAgainstReference(*kernels, DType::kFloat16, op, Pairs(f16), 1, 0, Target::kApart);
      CheckAgainstReference(*kernels, DType::kBFloat16, op, Pairs(bf16), 1, 0, Target::kApart);
    }
  }
}

// Random bit patterns, including NaNs of all kinds, infinities and subnormals.
TEST(reduce_returns_equal_bits_on_all_instruction_sets) {
  ForEachReducible([&](auto tag, DType dtype, ReduceOp op) {
    using T = typename decltype(tag)::type;
    constexpr int64_t kCount = 10007;
    uint64_t seed = 99;
    std::vector<std::vector<T>> values(3);
    const void* sources[3];
    for (int s = 0; s < 3; ++s) {
      for (int64_t i = 0; i < kCount; ++i) values[s].push_back(RandomBits<T>(seed));
      sources[s] = values[s].data();
    }
    for (int64_t divisor : {1, 3}) {
      if (divisor > 1 && !CheckReducible(dtype, op, true).ok()) continue;
      std::vector<T> expected(kCount), got(kCount);
      ReduceWith(*RunnableKernels().back(), dtype, op, expected.data(), sources, kCount, divisor);
      for (const Kernels* kernels : RunnableKernels()) {
        ReduceWith(*kernels, dtype, op, got.data(), sources, kCount, divisor);
        const bool order = op == ReduceOp::kMin || op == ReduceOp::kMax;
        bool same = true;
        for (int64_t i = 0; i < kCount; ++i) {
          same &= order ? std::memcmp(&got[i], &expected[i], sizeof(T)) == 0
                        : Same(got[i], expected[i]);
        }
        testing::Check(same, __FILE__, __LINE__, Where(*kernels, dtype, op, 3, kCount).c_str());
      }
    }
  });
}

TEST(reduce_rounds_half_types_once) {
  // 256 + 64 ones in bfloat16: added one by one, the sum would stay at 256.
  std::vector<BFloat16> big(1, {0x4380}), one(1, {0x3f80});
  std::vector<const void*> sources(65, one.data());
  sources[0] = big.data();
  BFloat16 sum;
  Reduce(DType::kBFloat16, ReduceOp::kSum, &sum, sources, 1);
  CHECK_EQ(ToFloat(sum), 320.0f);
  // Float16 sums above 65504 return into range if divided before rounding.
  std::vector<Float16> large(1, {0x7bff});
  const void* two[] = {large.data(), large.data()};
  Float16 mean;
  Reduce(DType::kFloat16, ReduceOp::kSum, &mean, two, 1, 2);
  CHECK_EQ(ToFloat(mean), 65504.0f);
}

std::vector<float> Floats() {
  std::vector<float> values = SpecialReals<float>();
  // A stride through all bit patterns, and both sides of every tie between half values.
  for (uint64_t bits = 0; bits < (1ull << 32); bits += 40487) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (const HalfFormat format : {kFloat16Format, kBFloat16Format}) {
    for (uint32_t h = 0; h < 0x10000; ++h) {
      if ((h & 0x7fff) >= format.infinity()) continue;
      const double low = HalfValue(h, format), high = HalfValue(h + 1, format);
      const auto tie =
          static_cast<float>(std::isinf(high) ? low * (1 + std::ldexp(1, -20)) : (low + high) / 2);
      for (int step = -1; step <= 1; ++step) {
        values.push_back(std::bit_cast<float>(std::bit_cast<uint32_t>(tie) + step));
      }
    }
  }
  return values;
}

void CheckNarrowed(const Kernels& k, const char* what, const std::vector<uint16_t>& got,
                   const std::vector<double>& values, HalfFormat format) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t expected = HalfBits(values[i], format);
    const bool ok = std::isnan(values[i]) ? IsHalfNan(got[i], format) : got[i] == expected;
    if (!ok) {
      testing::Report(false, __FILE__, __LINE__,
                      std::string(k.name) + " " + what + " of " + testing::Show(values[i]) +
                          " gave " + std::to_string(got[i]) + ", not " + std::to_string(expected));
      return;
    }
  }
}

TEST(reduce_of_bfloat16_survives_partial_sums_beyond_float32) {
  constexpr uint16_t kLarge = 0x7f62, kMaxValue = 0x7f7f, kInfinity = 0x7f80, kSign = 0x8000;   // 3.0e38
  const auto reduced = [](const Kernels& k, std::vector<uint16_t> values, int64_t divisor) {
    std::vector<std::vector<uint16_t>> rows;
    std::vector<const void*> sources;
    for (uint16_t value : values) rows.emplace_back(100, value);
    rows[0][50] = 0x3f80;   // one element has a different sum
    for (const auto& row : rows) sources.push_back(row.data());
    std::vector<uint16_t> result(100);
    ReduceWith(k, DType::kBFloat16, ReduceOp::kSum, result.data(), sources, 100, divisor);
    return result[0];
  };
  for (const Kernels* k : RunnableKernels()) {
    CHECK_EQ(reduced(*k, {kLarge, kLarge, kLarge, kLarge}, 4), kLarge);
    CHECK_EQ(reduced(*k, {kMaxValue, kMaxValue, kMaxValue, kMaxValue, kMaxValue}, 5), kMaxValue);
    CHECK_EQ(reduced(*k, {kMaxValue, kMaxValue}, 2), kMaxValue);
    CHECK_EQ(reduced(*k, {kLarge, kLarge, kLarge | kSign}, 1), kLarge);
    CHECK_EQ(reduced(*k, {kLarge, kLarge, kLarge}, 1), kInfinity);
    CHECK_EQ(reduced(*k, {kInfinity, kLarge, kLarge}, 3), kInfinity);
    CHECK((reduced(*k, {kInfinity, kLarge, kInfinity | kSign}, 3) & 0x7fff) > kInfinity);
  }
}

TEST(half_narrowing_rounds_to_nearest_even) {
  const std::vector<float> values = Floats();
  const std::vector<double> exact(values.begin(), values.end());
  const auto count = static_cast<int64_t>(values.size());
  std::vector<uint16_t> got(values.size()), generic(values.size());
  for (const Kernels* k : RunnableKernels()) {
    k->float_to_float16(got.data(), values.data(), count);
    CheckNarrowed(*k, "float16", got, exact, kFloat16Format);
    RunnableKernels().back()->float_to_float16(generic.data(), values.data(), count);
    CHECK(got == generic);   // including NaN payloads
    k->float_to_bfloat16(got.data(), values.data(), count);
    CheckNarrowed(*k, "bfloat16", got, exact, kBFloat16Format);
    RunnableKernels().back()->float_to_bfloat16(generic.data(), values.data(), count);
    CHECK(got == generic);
  }
}

TEST(half_widening_is_exact_for_all_values) {
  std::vector<uint16_t> bits(0x10000);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> f16(bits.size()), bf16(bits.size()), generic(bits.size());
  std::vector<double> wide(bits.size());
  const auto count = static_cast<int64_t>(bits.size());
  for (const Kernels* k : RunnableKernels()) {
    k->float16_to_float(f16.data(), bits.data(), count);
    k->bfloat16_to_float(bf16.data(), bits.data(), count);
    k->bfloat16_to_double(wide.data(), bits.data(), count);
    for (size_t i = 0; i < bits.size(); ++i) {
      const double brain = HalfValue(bits[i], kBFloat16Format);
      const bool ok = Same<double>(f16[i], HalfValue(bits[i], kFloat16Format)) &&
                      Same<double>(bf16[i], brain) && Same(wide[i], brain);
      if (ok) continue;
      testing::Report(false, __FILE__, __LINE__,
                      std::string(k->name) + " widens wrongly: bits " + std::to_string(i));
      break;
    }
    RunnableKernels().back()->float16_to_float(generic.data(), bits.data(), count);
    CHECK(std::memcmp(generic.data(), f16.data(), count * sizeof(float)) == 0);
  }
}

TEST(bfloat16_from_double_rounds_once) {
  std::vector<double> values = SpecialReals<double>();
  for (uint32_t h = 0; h < 0x10000; ++h) {
    if ((h & 0x7fff) >= kBFloat16Format.infinity()) continue;
    const double low = HalfValue(h, kBFloat16Format);
    const uint16_t next = h + 1;
    const double high = (next & 0x7fff) == kBFloat16Format.infinity()
                            ? std::copysign(std::ldexp(1, 128), low)
                            : HalfValue(next, kBFloat16Format);
    // Closer to the tie than float resolution: rounding to float first would be wrong.
    const double tie = (low + high) / 2;
    for (double v : {low, tie, std::nextafter(tie, low), std::nextafter(tie, high),
                     std::nextafter(low, high)}) {
      values.push_back(v);
    }
  }
  uint64_t seed = 4;
  for (int i = 0; i < 100000; ++i) values.push_back(RandomBits<double>(seed));
  const auto count = static_cast<int64_t>(values.size());
  std::vector<uint16_t> got(values.size()), generic(values.size());
  for (const Kernels* k : RunnableKernels()) {
    k->double_to_bfloat16(got.data(), values.data(), count);
    CheckNarrowed(*k, "bfloat16", got, values, kBFloat16Format);
    RunnableKernels().back()->double_to_bfloat16(generic.data(), values.data(), count);
    CHECK(got == generic);
  }
}

}  // namespace
}  // namespace jaxccomp
