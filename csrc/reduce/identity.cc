#include "reduce/identity.h"

#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>

namespace jaxccomp {
namespace {

template <typename T>
struct IsComplex : std::false_type {};
template <typename T>
struct IsComplex<std::complex<T>> : std::true_type {};

// Bit patterns of 1 and infinity; negative infinity also has the sign bit.
struct HalfBits {
  uint16_t one, infinity;
};

template <typename T>
T Identity(ReduceOp op) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    constexpr HalfBits bits =
        std::is_same_v<T, Float16> ? HalfBits{0x3c00, 0x7c00} : HalfBits{0x3f80, 0x7f80};
    switch (op) {
      case ReduceOp::kProd: return T{bits.one};
      case ReduceOp::kMin: return T{bits.infinity};
      case ReduceOp::kMax: return T{static_cast<uint16_t>(bits.infinity | 0x8000)};
      default: return T{0};
    }
  } else if constexpr (std::is_same_v<T, Bool>) {
    return T{static_cast<uint8_t>(op == ReduceOp::kAnd || op == ReduceOp::kMin ||
                                  op == ReduceOp::kProd)};
  } else if constexpr (IsComplex<T>::value) {
    return op == ReduceOp::kProd ? T(1) : T(0);
  } else {
    using Limits = std::numeric_limits<T>;
    switch (op) {
      case ReduceOp::kProd: return T(1);
      case ReduceOp::kMin: return Limits::has_infinity ? Limits::infinity() : Limits::max();
      case ReduceOp::kMax: return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
      case ReduceOp::kAnd:
        if constexpr (std::is_integral_v<T>) return static_cast<T>(~T(0));
        return T(0);
      default: return T(0);
    }
  }
}

}  // namespace

void FillIdentity(DType dtype, ReduceOp op, void* dst, int64_t count) {
  DispatchArithmetic(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T value = Identity<T>(op);
    auto* at = static_cast<char*>(dst);
    for (int64_t i = 0; i < count; ++i) std::memcpy(at + i * sizeof(T), &value, sizeof(T));
  });
}

}  // namespace jaxccomp
