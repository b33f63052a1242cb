// Helpers of kernels that encode floats. Kernels are compiled once per instruction set: the functions are static, so
// that the linker does not use one file's copy in another file.
#pragma once

#include <cstdint>

#include "common/host_device.h"
#include "common/loops.h"

namespace jaxccomp {

// The bits of a float. Comparing bits as integers gives the same result on threads that flush
// subnormals (XLA's do), and orders NaN above infinity above all finite values.
using Bits = Unaligned<uint32_t>;

inline constexpr uint32_t kMagnitude = 0x7fffffff;
inline constexpr uint32_t kInfinity = 0x7f800000;
inline constexpr uint32_t kNaN = 0x7fc00000;

JAXCCOMP_HOST_DEVICE static inline uint32_t BitsOf(float value) {
  return __builtin_bit_cast(uint32_t, value);
}
JAXCCOMP_HOST_DEVICE static inline float FloatOf(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

static inline uint32_t GreatestMagnitude(const Bits* values, int64_t count) {
  int32_t maximum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<int32_t>(values[i] & kMagnitude);
    maximum = magnitude > maximum ? magnitude : maximum;
  }
  return static_cast<uint32_t>(maximum);
}

template <bool kAdd>
static inline void Put(Unaligned<float>* to, float value) {
  if constexpr (kAdd) {
    *to = *to + value;
  } else {
    *to = value;
  }
}

}  // namespace jaxccomp
