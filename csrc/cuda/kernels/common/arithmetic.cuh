// What reductions do with two values, for every type of values. Operations come in two forms that
// differ in NaN alone: the first makes any NaN, in as few instructions as the GPU needs; the exact one
// makes that which x86 makes. NaN never turns back into a number, so that whoever finds one at the
// end can compute all of it again, exactly.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/dtype.h"
#include "common/host_device.h"
#include "cuda/kernels/common/values.cuh"

namespace jaxccomp::cuda {

template <typename F>
struct Complex { F re, im; };

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <typename T>
inline constexpr bool kIsComplex = false;
template <typename F>
inline constexpr bool kIsComplex<Complex<F>> = true;
template <typename T>
inline constexpr bool kHasNaN = std::is_floating_point_v<T> || kIsComplex<T> || kIsHalf<T>;

// What values are while they are computed with.
template <typename T>
using Held = std::conditional_t<kIsHalf<T>, float, T>;

// From and to what lies in memory. Only WidenExactly keeps which NaN it was.
template <typename T>
JAXCCOMP_HOST_DEVICE inline Held<T> Widen(T value) {
  if constexpr (kIsHalf<T>) {
    return FloatOf(Real<T>::Widen(value.bits));
  } else {
    return value;
  }
}
template <typename T>
JAXCCOMP_HOST_DEVICE inline Held<T> WidenExactly(T value) {
  if constexpr (kIsHalf<T>) {
    return FloatOf(Real<T>::WidenExactly(value.bits));
  } else {
    return value;
  }
}
// NarrowNumber is not for NaN.
template <typename T>
JAXCCOMP_HOST_DEVICE inline T NarrowNumber(Held<T> value) {
  if constexpr (kIsHalf<T>) {
    return {static_cast<uint16_t>(Real<T>::NarrowNumber(BitsOf(value)))};
  } else {
    return value;
  }
}
template <typename T>
JAXCCOMP_HOST_DEVICE inline T Narrow(Held<T> value) {
  if constexpr (kIsHalf<T>) {
    return {static_cast<uint16_t>(Real<T>::Narrow(BitsOf(value)))};
  } else {
    return value;
  }
}

template <typename T>
JAXCCOMP_HOST_DEVICE inline bool HoldsNaN(const T& value) {
  if constexpr (kIsComplex<T>) {
    return value.re != value.re || value.im != value.im;
  } else if constexpr (kHasNaN<T>) {
    return value != value;
  } else {
    return false;
  }
}

// The bits of a float or a double.
template <typename F>
struct Ieee {
  using Bits = std::conditional_t<sizeof(F) == 4, uint32_t, uint64_t>;
  static constexpr int kFraction = std::numeric_limits<F>::digits - 1;
  static constexpr Bits kQuiet = Bits{1} << (kFraction - 1);
  static constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  // What x86 makes of numbers that have no result.
  static constexpr Bits kInvalid = static_cast<Bits>(~Bits{0}) << (kFraction - 1);

  JAXCCOMP_HOST_DEVICE static Bits Of(F value) { return __builtin_bit_cast(Bits, value); }
  JAXCCOMP_HOST_DEVICE static F From(Bits bits) { return __builtin_bit_cast(F, bits); }
};

// `result` of computing with a and b, where it is NaN with the bits that x86 gives it.
template <bool kExact, typename F>
JAXCCOMP_HOST_DEVICE inline F WithNaN(F result, F a, F b) {
  using I = Ieee<F>;
  if constexpr (!kExact) return result;
  const F nan = I::From(a != a   ? I::Of(a) | I::kQuiet
                        : b != b ? I::Of(b) | I::kQuiet
                                 : I::kInvalid);
  return result != result ? nan : result;
}

template <bool kExact, typename F>
JAXCCOMP_HOST_DEVICE inline F Plus(F a, F b) { return WithNaN<kExact>(a + b, a, b); }
template <bool kExact, typename F>
JAXCCOMP_HOST_DEVICE inline F Less(F a, F b) { return WithNaN<kExact>(a - b, a, b); }
template <bool kExact, typename F>
JAXCCOMP_HOST_DEVICE inline F Times(F a, F b) { return WithNaN<kExact>(a * b, a, b); }

// NaN wins, the first one, and -0 is less than +0.
template <bool kExact, bool kLeast, typename F>
JAXCCOMP_HOST_DEVICE inline F Extreme(F a, F b) {
#if defined(__CUDA_ARCH__)
  if constexpr (!kExact && sizeof(F) == 4) {
    F result;
    if constexpr (kLeast) {
      asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    } else {
      asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    }
    return result;
  }
#endif
  using I = Ieee<F>;
  const auto x = I::Of(a), y = I::Of(b);
  const bool first = kLeast ? a < b : a > b;
  const auto chosen = first || a != a ? x : y;
  return I::From(a == b ? (kLeast ? x | y : x & y) : chosen);
}

namespace combine {

// Integers in which nothing overflows.
template <typename T>
using Wrapping = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

struct Sum {
  template <bool kExact, typename T>
  JAXCCOMP_HOST_DEVICE static T Apply(T a, T b) {
    if constexpr (kHasNaN<T>) {
      return Plus<kExact>(a, b);
    } else {
      return static_cast<T>(Wrapping<T>{a} + Wrapping<T>{b});
    }
  }
};

struct Minus {
  template <bool kExact, typename T>
  JAXCCOMP_HOST_DEVICE static T Apply(T a, T b) {
    if constexpr (kHasNaN<T>) {
      return Less<kExact>(a, b);
    } else {
      return static_cast<T>(Wrapping<T>{a} - Wrapping<T>{b});
    }
  }
};

struct Prod {
  template <bool kExact, typename T>
  JAXCCOMP_HOST_DEVICE static T Apply(T a, T b) {
    if constexpr (kIsComplex<T>) {
      return {Less<kExact>(Times<kExact>(a.re, b.re), Times<kExact>(a.im, b.im)),
              Plus<kExact>(Times<kExact>(a.re, b.im), Times<kExact>(a.im, b.re))};
    } else if constexpr (kHasNaN<T>) {
      return Times<kExact>(a, b);
    } else {
      return static_cast<T>(Wrapping<T>{a} * Wrapping<T>{b});
    }
  }
};

template <bool kLeast>
struct MinMax {
  template <bool kExact, typename T>
  JAXCCOMP_HOST_DEVICE static T Apply(T a, T b) {
    if constexpr (kHasNaN<T>) {
      return Extreme<kExact, kLeast>(a, b);
    } else {
      return (kLeast ? a < b : a > b) ? a : b;
    }
  }
};
using Min = MinMax<true>;
using Max = MinMax<false>;

struct And {
  template <bool kExact, typename T>
  JAXCCOMP_HOST_DEVICE static T Apply(T a, T b) { return static_cast<T>(a & b); }
};
struct Or {
  template <bool kExact, typename T>
  JAXCCOMP_HOST_DEVICE static T Apply(T a, T b) { return static_cast<T>(a | b); }
};
struct Xor {
  template <bool kExact, typename T>
  JAXCCOMP_HOST_DEVICE static T Apply(T a, T b) { return static_cast<T>(a ^ b); }
};

// Whether bits of any type can be combined as words.
template <typename Op>
inline constexpr bool kOfBits =
    std::is_same_v<Op, And> || std::is_same_v<Op, Or> || std::is_same_v<Op, Xor>;

}  // namespace combine

// The mean of what has been summed.
template <bool kExact, typename T>
JAXCCOMP_HOST_DEVICE inline T Divided(T sum, int64_t divisor) {
  if constexpr (kIsComplex<T>) {
    return {Divided<kExact>(sum.re, divisor), Divided<kExact>(sum.im, divisor)};
  } else {
    const auto by = static_cast<T>(divisor);
    return WithNaN<kExact>(sum / by, sum, by);
  }
}

}  // namespace jaxccomp::cuda
