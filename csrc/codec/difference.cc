#include "codec/difference.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "common/half.h"
#include "reduce/reduce.h"

namespace jaxccomp {
namespace {

constexpr int64_t kPiece = 1024;

void Xor(const void* a, const void* b, void* out, int64_t bytes) {
  const void* sources[] = {a, b};
  Reduce(DType::kUInt8, ReduceOp::kXor, out, sources, bytes);
}

// a - b. Integers wrap.
template <typename T>
T Minus(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) - static_cast<U>(b)));
  } else {
    return a - b;
  }
}
Float16 Minus(Float16 a, Float16 b) { return ToFloat16(ToFloat(a) - ToFloat(b)); }
BFloat16 Minus(BFloat16 a, BFloat16 b) { return ToBFloat16(ToFloat(a) - ToFloat(b)); }
Bool Minus(Bool a, Bool b) { return {static_cast<uint8_t>(a.bits ^ b.bits)}; }

}  // namespace

void Subtract(DType dtype, bool exact, const void* values, const void* ref, void* difference,
              int64_t count) {
  if (exact) return Xor(values, ref, difference, count * SizeBytes(dtype));
  DispatchArithmetic(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto* a = static_cast<const std::byte*>(values);
    const auto* b = static_cast<const std::byte*>(ref);
    auto* out = static_cast<std::byte*>(difference);
    std::array<T, kPiece> x, y;
    for (int64_t i = 0; i < count; i += kPiece) {
      const auto n = static_cast<size_t>(std::min(kPiece, count - i));
      const size_t at = i * sizeof(T), bytes = n * sizeof(T);
      std::memcpy(static_cast<void*>(x.data()), a + at, bytes);
      std::memcpy(static_cast<void*>(y.data()), b + at, bytes);
      for (size_t j = 0; j < n; ++j) x[j] = Minus(x[j], y[j]);
      std::memcpy(out + at, static_cast<const void*>(x.data()), bytes);
    }
  });
}

void Add(DType dtype, bool exact, const void* difference, const void* ref, void* values,
         int64_t count) {
  if (exact) return Xor(difference, ref, values, count * SizeBytes(dtype));
  const void* sources[] = {ref, difference};
  Reduce(dtype, ReduceOp::kSum, values, sources, count);
}

}  // namespace jaxccomp
