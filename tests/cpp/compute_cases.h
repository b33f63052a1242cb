// Values to compute with, and what a result may be, shared by the tests of the kernels of
// csrc/cuda/kernels/compute/compute.h on the host and on a GPU.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "common/dtype.h"
#include "lossy_codecs.h"
#include "reduce/reduce.h"

namespace jaxccomp::testing {

inline uint64_t Scrambled(uint64_t x) {   // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Calls f(dtype, op) with every pair that can be reduced.
template <typename F>
void ForEachReduction(F&& f) {
  for (int d = 0; d < kDTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto dtype = static_cast<DType>(d);
      const auto op = static_cast<ReduceOp>(o);
      if (CheckReducible(dtype, op, false).ok()) f(dtype, op);
    }
  }
}

// The real parts that a value has.
inline int64_t RealsOf(DType dtype) {
  return dtype == DType::kComplex64 || dtype == DType::kComplex128 ? 2 : 1;
}

// The bits of a real, and those of its fraction: 0 of types that do not float.
struct RealFormat { int bits, fraction; };
inline RealFormat FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return {16, 10};
    case DType::kBFloat16: return {16, 7};
    case DType::kFloat32:
    case DType::kComplex64: return {32, 23};
    case DType::kFloat64:
    case DType::kComplex128: return {64, 52};
    default: return {static_cast<int>(8 * SizeBytes(dtype)), 0};
  }
}

inline uint64_t RealBits(DType dtype, const std::byte* values, int64_t i) {
  const auto bytes = static_cast<size_t>(FormatOf(dtype).bits / 8);
  uint64_t bits = 0;
  std::memcpy(&bits, values + static_cast<size_t>(i) * bytes, bytes);
  return bits;
}

inline bool IsNaNBits(DType dtype, uint64_t bits) {
  const RealFormat format = FormatOf(dtype);
  if (format.fraction == 0) return false;
  const uint64_t magnitude = bits & ~(uint64_t{1} << (format.bits - 1));
  const uint64_t exponents = (uint64_t{1} << (format.bits - 1 - format.fraction)) - 1;
  return magnitude > exponents << format.fraction;
}

// Any bits, among them every kind of floating value: most near 1, others zeros, denormals,
// infinities, NaNs with payloads, quiet and signalling. Bools are 0 or 1.
inline Bytes ComputeValues(DType dtype, int64_t count, uint64_t seed) {
  const RealFormat format = FormatOf(dtype);
  const int64_t reals = count * RealsOf(dtype);
  const auto bytes = static_cast<size_t>(format.bits / 8);
  Bytes out(static_cast<size_t>(reals) * bytes);
  for (int64_t i = 0; i < reals; ++i) {
    const uint64_t random = Scrambled(seed * 0x1000003 + static_cast<uint64_t>(i));
    uint64_t bits = Scrambled(random);
    if (dtype == DType::kBool) bits &= 1;
    if (format.fraction > 0) {
      const uint64_t sign = bits & uint64_t{1} << (format.bits - 1);
      const uint64_t fraction = bits & ((uint64_t{1} << format.fraction) - 1);
      const uint64_t most = (uint64_t{1} << (format.bits - 1 - format.fraction)) - 1;
      const uint64_t near = most / 2 - 1 + (random >> 8) % 3;
      switch (random % 64) {
        case 0: bits = sign; break;
        case 1: bits = sign | fraction; break;
        case 2: bits = sign | most << format.fraction; break;
        case 3: bits = sign | most << format.fraction | fraction; break;
        case 4: bits = sign | (most - 1) << format.fraction | fraction; break;
        case 5: break;
        default: bits = sign | near << format.fraction | fraction;
      }
    }
    std::memcpy(&out[static_cast<size_t>(i) * bytes], &bits, bytes);
  }
  return out;
}

// Of each real, whether both values are NaN: which of them comes out is open.
inline std::vector<bool> BothNaN(DType a_dtype, const Bytes& a, DType b_dtype, const Bytes& b,
                                 int64_t count) {
  std::vector<bool> both(static_cast<size_t>(count * RealsOf(a_dtype)));
  for (size_t i = 0; i < both.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    both[i] = IsNaNBits(a_dtype, RealBits(a_dtype, a.data(), at)) &&
              IsNaNBits(b_dtype, RealBits(b_dtype, b.data(), at));
  }
  return both;
}

// Whether, on the way to each real of a reduction, an addition or a product meets two NaNs. Products
// of complex numbers meet them wherever there is one.
inline std::vector<bool> TwoNaNsMeet(DType dtype, ReduceOp op,
                                     std::span<const void* const> sources, int64_t count) {
  const int64_t each = RealsOf(dtype);
  std::vector<bool> meet(static_cast<size_t>(count * each));
  if (op != ReduceOp::kSum && op != ReduceOp::kProd) return meet;
  Bytes partial(static_cast<size_t>(count * SizeBytes(dtype)));
  const bool complex_product = each == 2 && op == ReduceOp::kProd;
  for (size_t s = 1; s <= sources.size(); ++s) {
    Reduce(dtype, op, partial.data(), sources.first(s), count);
    for (int64_t i = 0; i < count * each; ++i) {
      const bool nan = IsNaNBits(dtype, RealBits(dtype, partial.data(), i));
      const bool next =
          s < sources.size() &&
          IsNaNBits(dtype, RealBits(dtype, static_cast<const std::byte*>(sources[s]), i));
      if (nan && (next || complex_product)) meet[static_cast<size_t>(i)] = true;
    }
  }
  return meet;
}

// The first real with other bits than expected, where not both are NaN and may be any; or -1.
inline int64_t FirstOther(DType dtype, const Bytes& expected, const Bytes& found,
                          const std::vector<bool>& any_nan) {
  const int64_t reals =
      static_cast<int64_t>(expected.size()) / SizeBytes(dtype) * RealsOf(dtype);
  for (int64_t i = 0; i < reals; ++i) {
    const uint64_t a = RealBits(dtype, expected.data(), i), b = RealBits(dtype, found.data(), i);
    const bool nans = IsNaNBits(dtype, a) && IsNaNBits(dtype, b);
    if (a != b && !(nans && any_nan[static_cast<size_t>(i)])) return i;
  }
  return -1;
}

}  // namespace jaxccomp::testing
