// Element types, their sizes and names; the only place that switches on them.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace jaxccomp {

enum class DType : uint8_t {
  kBool,
  kInt8, kInt16, kInt32, kInt64,
  kUInt8, kUInt16, kUInt32, kUInt64,
  kFloat16, kBFloat16, kFloat32, kFloat64,
  kComplex64, kComplex128,
  kOpaque8,   // one-byte types without arithmetic (every float8, int4 and uint4 storage)
};

inline constexpr int kDTypeCount = 16;

struct DTypeInfo {
  std::string_view name;
  int64_t size_bytes;
};

inline constexpr DTypeInfo kDTypeTable[kDTypeCount] = {
    {"bool", 1},    {"int8", 1},     {"int16", 2},   {"int32", 4},
    {"int64", 8},   {"uint8", 1},    {"uint16", 2},  {"uint32", 4},
    {"uint64", 8},  {"float16", 2},  {"bfloat16", 2}, {"float32", 4},
    {"float64", 8}, {"complex64", 8}, {"complex128", 16}, {"opaque8", 1},
};

inline constexpr const DTypeInfo& Info(DType t) {
  return kDTypeTable[static_cast<int>(t)];
}
inline constexpr int64_t SizeBytes(DType t) { return Info(t).size_bytes; }
inline constexpr std::string_view Name(DType t) { return Info(t).name; }

// Real floating types with arithmetic.
inline constexpr bool IsFloating(DType t) {
  return t == DType::kFloat16 || t == DType::kBFloat16 || t == DType::kFloat32 ||
         t == DType::kFloat64;
}

// Types that are summed in float and rounded once, at the end.
inline constexpr bool IsHalf(DType t) { return t == DType::kFloat16 || t == DType::kBFloat16; }

// Half-precision values as stored in memory; arithmetic on them is done in float.
struct Float16 { uint16_t bits; };
struct BFloat16 { uint16_t bits; };
struct Bool { uint8_t bits; };

template <typename T>
struct TypeTag { using type = T; };

// Calls f(TypeTag<T>{}) with the C++ type of `t`. Returns false without a call for kOpaque8, which has no arithmetic.
template <typename F>
bool DispatchArithmetic(DType t, F&& f) {
  switch (t) {
    case DType::kBool: f(TypeTag<Bool>{}); return true;
    case DType::kInt8: f(TypeTag<int8_t>{}); return true;
    case DType::kInt16: f(TypeTag<int16_t>{}); return true;
    case DType::kInt32: f(TypeTag<int32_t>{}); return true;
    case DType::kInt64: f(TypeTag<int64_t>{}); return true;
    case DType::kUInt8: f(TypeTag<uint8_t>{}); return true;
    case DType::kUInt16: f(TypeTag<uint16_t>{}); return true;
    case DType::kUInt32: f(TypeTag<uint32_t>{}); return true;
    case DType::kUInt64: f(TypeTag<uint64_t>{}); return true;
    case DType::kFloat16: f(TypeTag<Float16>{}); return true;
    case DType::kBFloat16: f(TypeTag<BFloat16>{}); return true;
    case DType::kFloat32: f(TypeTag<float>{}); return true;
    case DType::kFloat64: f(TypeTag<double>{}); return true;
    case DType::kComplex64: f(TypeTag<std::complex<float>>{}); return true;
    case DType::kComplex128: f(TypeTag<std::complex<double>>{}); return true;
    case DType::kOpaque8: return false;
  }
  return false;
}

}  // namespace jaxccomp
