// The body of reduce_generic.cc, reduce_avx2.cc and reduce_avx512.cc, each compiled with its own
// instruction-set flags. The loops are written for the compiler to vectorise (-O3); only float16
// needs intrinsics. -ffp-contract=off is required: a fused multiply-add would give different bits.
//
// Everything is in an unnamed namespace and calls nothing of the standard library, so that the linker
// cannot use a function compiled for a newer processor on an older one.
//
// Before including it, define JAXCCOMP_KERNELS (the variable to define) and JAXCCOMP_KERNELS_NAME.

#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "common/dtype.h"
#include "common/half.h"
#include "common/loops.h"
#include "reduce/kernels.h"

namespace jaxccomp {
namespace {

// An unsigned type that is not promoted to int, so that its arithmetic wraps.
template <typename T>
struct Wrapping { using Type = uint32_t; };
template <>
struct Wrapping<int64_t> { using Type = uint64_t; };
template <>
struct Wrapping<uint64_t> { using Type = uint64_t; };

template <typename T>
struct BitsOf { using Type = T; };
template <>
struct BitsOf<float> { using Type = uint32_t; };
template <>
struct BitsOf<double> { using Type = uint64_t; };

template <typename T>
inline constexpr bool kFloating = false;
template <>
inline constexpr bool kFloating<float> = true;
template <>
inline constexpr bool kFloating<double> = true;

// Returns the first NaN if there is one; -0 is less than +0, so that the order of ranks does not matter.
template <ReduceOp op, typename T>
inline T FloatingMinMax(T a, T b) {
  using Bits = typename BitsOf<T>::Type;
  const Bits a_bits = __builtin_bit_cast(Bits, a);
  const Bits b_bits = __builtin_bit_cast(Bits, b);
  const bool first = op == ReduceOp::kMin ? a < b : a > b;
  const Bits chosen = first || a != a ? a_bits : b_bits;
  const Bits merged = op == ReduceOp::kMin ? (a_bits | b_bits) : (a_bits & b_bits);
  return __builtin_bit_cast(T, a == b ? merged : chosen);
}

template <ReduceOp op, typename T>
inline T Apply(T a, T b) {
  if constexpr (kFloating<T>) {
    if constexpr (op == ReduceOp::kSum) return a + b;
    if constexpr (op == ReduceOp::kProd) return a * b;
    if constexpr (op == ReduceOp::kMin || op == ReduceOp::kMax) return FloatingMinMax<op>(a, b);
  } else {
    using U = typename Wrapping<T>::Type;
    const U x = static_cast<U>(a), y = static_cast<U>(b);
    if constexpr (op == ReduceOp::kSum) return static_cast<T>(x + y);
    if constexpr (op == ReduceOp::kProd) return static_cast<T>(x * y);
    if constexpr (op == ReduceOp::kMin) return a < b ? a : b;
    if constexpr (op == ReduceOp::kMax) return a > b ? a : b;
    if constexpr (op == ReduceOp::kAnd) return static_cast<T>(a & b);
    if constexpr (op == ReduceOp::kOr) return static_cast<T>(a | b);
    if constexpr (op == ReduceOp::kXor) return static_cast<T>(a ^ b);
  }
}

template <typename T, ReduceOp op>
void Combine(void* dst, const void* a, const void* b, int64_t count) {
  auto* out = static_cast<Unaligned<T>*>(dst);
  auto* x = static_cast<const Unaligned<T>*>(a);
  auto* y = static_cast<const Unaligned<T>*>(b);
  JAXCCOMP_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) out[i] = Apply<op, T>(x[i], y[i]);
}

// Combines in float, in registers.
template <ReduceOp op>
void CombineBFloat16(void* dst, const void* a, const void* b, int64_t count) {
  auto* out = static_cast<Unaligned<uint16_t>*>(dst);
  auto* x = static_cast<const Unaligned<uint16_t>*>(a);
  auto* y = static_cast<const Unaligned<uint16_t>*>(b);
  JAXCCOMP_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    out[i] = ToBFloat16(Apply<op, float>(ToFloat(BFloat16{x[i]}), ToFloat(BFloat16{y[i]}))).bits;
  }
}

// A complex value is two reals. std::complex is not used: see the top of the file.
template <typename T>
void ComplexSum(void* dst, const void* a, const void* b, int64_t count) {
  Combine<T, ReduceOp::kSum>(dst, a, b, 2 * count);
}

// Keeps products rounded: g++ 12 fuses the addition below (vfmaddsub) even with -ffp-contract=off.
#if __has_builtin(__builtin_assoc_barrier)
#define JAXCCOMP_ROUNDED(x) __builtin_assoc_barrier(x)
#else
#define JAXCCOMP_ROUNDED(x) (x)
#endif

template <typename T>
void ComplexProd(void* dst, const void* a, const void* b, int64_t count) {
  auto* out = static_cast<Unaligned<T>*>(dst);
  auto* x = static_cast<const Unaligned<T>*>(a);
  auto* y = static_cast<const Unaligned<T>*>(b);
  JAXCCOMP_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    const T xr = x[2 * i], xi = x[2 * i + 1], yr = y[2 * i], yi = y[2 * i + 1];
    out[2 * i] = JAXCCOMP_ROUNDED(xr * yr) - JAXCCOMP_ROUNDED(xi * yi);
    out[2 * i + 1] = JAXCCOMP_ROUNDED(xr * yi) + JAXCCOMP_ROUNDED(xi * yr);
  }
}

template <typename T>
void Divide(void* values, int64_t count, T divisor) {
  auto* v = static_cast<Unaligned<T>*>(values);
  JAXCCOMP_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) v[i] = v[i] / divisor;
}

// x, or 0 if its magnitude is above `maximum` or it is NaN. By a mask, as in half.h.
template <typename T>
inline T ZeroAbove(T x, T maximum) {
  using Bits = typename BitsOf<T>::Type;
  const Bits bits = __builtin_bit_cast(Bits, x);
  const Bits small = (__builtin_bit_cast(T, bits << 1 >> 1) <= maximum) ? ~Bits{0} : Bits{0};
  return __builtin_bit_cast(T, bits & small);
}

template <typename T>
void Lost(void* dst, const void* before, const void* values, const void* decoded, int64_t count,
          T scale, T maximum) {
  auto* out = static_cast<Unaligned<T>*>(dst);
  auto* old = static_cast<const Unaligned<T>*>(before);
  auto* x = static_cast<const Unaligned<T>*>(values);
  auto* y = static_cast<const Unaligned<T>*>(decoded);
  JAXCCOMP_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    out[i] = ZeroAbove<T>(old[i] + ZeroAbove<T>((x[i] - y[i]) * scale, maximum), maximum);
  }
}

void BFloat16ToFloat(void* dst, const void* src, int64_t count) {
  auto* out = static_cast<Unaligned<float>*>(dst);
  auto* in = static_cast<const Unaligned<uint16_t>*>(src);
  JAXCCOMP_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) out[i] = ToFloat(BFloat16{in[i]});
}

template <typename Half>
void HalfToDouble(void* dst, const void* src, int64_t count) {
  auto* out = static_cast<Unaligned<double>*>(dst);
  auto* in = static_cast<const Unaligned<uint16_t>*>(src);
  JAXCCOMP_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) out[i] = ToFloat(Half{in[i]});
}

void DoubleToFloat16(void* dst, const void* src, int64_t count) {
  auto* out = static_cast<Unaligned<uint16_t>*>(dst);
  auto* in = static_cast<const Unaligned<double>*>(src);
  JAXCCOMP_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) out[i] = ToFloat16(static_cast<double>(in[i])).bits;
}

template <typename T>
void ToBFloat16s(void* dst, const void* src, int64_t count) {
  auto* out = static_cast<Unaligned<uint16_t>*>(dst);
  auto* in = static_cast<const Unaligned<T>*>(src);
  JAXCCOMP_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) out[i] = ToBFloat16(static_cast<T>(in[i])).bits;
}

void Float16ToFloat(void* dst, const void* src, int64_t count) {
  auto* out = static_cast<Unaligned<float>*>(dst);
  auto* in = static_cast<const Unaligned<uint16_t>*>(src);
  int64_t i = 0;
  // Masked intrinsics with all lanes on: g++ 12 warns in its own header about the plain ones.
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i));
    _mm512_storeu_ps(out + i, _mm512_maskz_cvtph_ps(0xffff, half));
  }
#elif defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(reinterpret_cast<float*>(out + i), _mm256_cvtph_ps(half));
  }
#endif
  JAXCCOMP_INDEPENDENT
  for (int64_t j = i; j < count; ++j) out[j] = ToFloat(Float16{in[j]});
}

void FloatToFloat16(void* dst, const void* src, int64_t count) {
  auto* out = static_cast<Unaligned<uint16_t>*>(dst);
  auto* in = static_cast<const Unaligned<float>*>(src);
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) {
    const __m256i half = _mm512_maskz_cvtps_ph(0xffff, _mm512_loadu_ps(in + i),
                                               _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), half);
  }
#elif defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    const __m256 full = _mm256_loadu_ps(reinterpret_cast<const float*>(in + i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(full, _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  JAXCCOMP_INDEPENDENT
  for (int64_t j = i; j < count; ++j) out[j] = ToFloat16(static_cast<float>(in[j])).bits;
}

constexpr int Index(DType dtype) { return static_cast<int>(dtype); }
constexpr int Index(ReduceOp op) { return static_cast<int>(op); }

template <typename T>
constexpr void AddArithmetic(Kernels::Combine (&row)[kReduceOpCount]) {
  row[Index(ReduceOp::kSum)] = &Combine<T, ReduceOp::kSum>;
  row[Index(ReduceOp::kProd)] = &Combine<T, ReduceOp::kProd>;
}

template <typename T>
constexpr void AddOrder(Kernels::Combine (&row)[kReduceOpCount]) {
  row[Index(ReduceOp::kMin)] = &Combine<T, ReduceOp::kMin>;
  row[Index(ReduceOp::kMax)] = &Combine<T, ReduceOp::kMax>;
}

template <typename T>
constexpr void AddBits(Kernels::Combine (&row)[kReduceOpCount]) {
  row[Index(ReduceOp::kAnd)] = &Combine<T, ReduceOp::kAnd>;
  row[Index(ReduceOp::kOr)] = &Combine<T, ReduceOp::kOr>;
  row[Index(ReduceOp::kXor)] = &Combine<T, ReduceOp::kXor>;
}

template <typename T>
constexpr void AddInteger(Kernels::Combine (&row)[kReduceOpCount]) {
  AddArithmetic<T>(row);
  AddOrder<T>(row);
  AddBits<T>(row);
}

template <typename T>
constexpr void AddFloating(Kernels::Combine (&row)[kReduceOpCount]) {
  AddArithmetic<T>(row);
  AddOrder<T>(row);
}

template <typename T>
constexpr void AddComplex(Kernels::Combine (&row)[kReduceOpCount]) {
  row[Index(ReduceOp::kSum)] = &ComplexSum<T>;
  row[Index(ReduceOp::kProd)] = &ComplexProd<T>;
}

constexpr void AddBFloat16(Kernels::Combine (&row)[kReduceOpCount]) {
  row[Index(ReduceOp::kSum)] = &CombineBFloat16<ReduceOp::kSum>;
  row[Index(ReduceOp::kProd)] = &CombineBFloat16<ReduceOp::kProd>;
  row[Index(ReduceOp::kMin)] = &CombineBFloat16<ReduceOp::kMin>;
  row[Index(ReduceOp::kMax)] = &CombineBFloat16<ReduceOp::kMax>;
}

constexpr Kernels MakeKernels() {
  Kernels k = {};
  k.name = JAXCCOMP_KERNELS_NAME;
  AddOrder<uint8_t>(k.combine[Index(DType::kBool)]);   // a bool is a byte that is 0 or 1
  AddBits<uint8_t>(k.combine[Index(DType::kBool)]);
  AddInteger<int8_t>(k.combine[Index(DType::kInt8)]);
  AddInteger<int16_t>(k.combine[Index(DType::kInt16)]);
  AddInteger<int32_t>(k.combine[Index(DType::kInt32)]);
  AddInteger<int64_t>(k.combine[Index(DType::kInt64)]);
  AddInteger<uint8_t>(k.combine[Index(DType::kUInt8)]);
  AddInteger<uint16_t>(k.combine[Index(DType::kUInt16)]);
  AddInteger<uint32_t>(k.combine[Index(DType::kUInt32)]);
  AddInteger<uint64_t>(k.combine[Index(DType::kUInt64)]);
  AddFloating<float>(k.combine[Index(DType::kFloat32)]);
  AddFloating<double>(k.combine[Index(DType::kFloat64)]);
  AddBFloat16(k.combine[Index(DType::kBFloat16)]);
  AddComplex<float>(k.combine[Index(DType::kComplex64)]);
  AddComplex<double>(k.combine[Index(DType::kComplex128)]);
  k.divide_float = &Divide<float>;
  k.divide_double = &Divide<double>;
  k.residual_float = &Lost<float>;
  k.residual_double = &Lost<double>;
  k.float16_to_float = &Float16ToFloat;
  k.float_to_float16 = &FloatToFloat16;
  k.bfloat16_to_float = &BFloat16ToFloat;
  k.float_to_bfloat16 = &ToBFloat16s<float>;
  k.float16_to_double = &HalfToDouble<Float16>;
  k.double_to_float16 = &DoubleToFloat16;
  k.bfloat16_to_double = &HalfToDouble<BFloat16>;
  k.double_to_bfloat16 = &ToBFloat16s<double>;
  return k;
}

}  // namespace

extern const Kernels JAXCCOMP_KERNELS;
constinit const Kernels JAXCCOMP_KERNELS = MakeKernels();

}  // namespace jaxccomp
