// Values of tensors in kernels: loads, stores, conversions and sums. Coders work on the bits of floats.
//
// GPUs return one canonical NaN; CPUs keep a NaN's payload. Where the bits of a NaN are visible in results, these
// functions return the bits that x86 would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include "codec/float_kernels.h"
#include "common/dtype.h"
#include "common/half.h"
#include "common/host_device.h"
#include "common/status.h"
#include "cuda/kernels/common/memory.cuh"

namespace jaxccomp::cuda {

JAXCCOMP_HOST_DEVICE inline bool IsNaN(uint32_t bits) { return (bits & kMagnitude) > kInfinity; }

// Conversions of a dtype; `raw` has a value's bits in memory in the lowest bits. Widen returns the bits of a float, of
// any NaN for a NaN; WidenExactly keeps the NaN's payload. NarrowNumber must not get a NaN.
template <typename T>
struct Real;

template <>
struct Real<float> {
  static constexpr int kBytes = 4;
  JAXCCOMP_HOST_DEVICE static uint32_t Widen(uint32_t raw) { return raw; }
  JAXCCOMP_HOST_DEVICE static uint32_t WidenExactly(uint32_t raw) { return raw; }
  JAXCCOMP_HOST_DEVICE static uint32_t NarrowNumber(uint32_t bits) { return bits; }
  JAXCCOMP_HOST_DEVICE static uint32_t Narrow(uint32_t bits) { return bits; }
};

template <>
struct Real<BFloat16> {
  static constexpr int kBytes = 2;
  JAXCCOMP_HOST_DEVICE static uint32_t Widen(uint32_t raw) { return raw << 16; }
  JAXCCOMP_HOST_DEVICE static uint32_t WidenExactly(uint32_t raw) { return raw << 16; }
  JAXCCOMP_HOST_DEVICE static uint32_t NarrowNumber(uint32_t bits) {
#if defined(__CUDA_ARCH__)
    return __bfloat16_as_ushort(__float2bfloat16_rn(FloatOf(bits)));
#else
    return ToBFloat16(FloatOf(bits)).bits;
#endif
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Narrow(uint32_t bits) {
    return IsNaN(bits) ? bits >> 16 | 0x40 : NarrowNumber(bits);
  }
};

template <>
struct Real<Float16> {
  static constexpr int kBytes = 2;
  JAXCCOMP_HOST_DEVICE static uint32_t Widen(uint32_t raw) {
#if defined(__CUDA_ARCH__)
    return BitsOf(__half2float(__ushort_as_half(static_cast<unsigned short>(raw))));
#else
    return WidenExactly(raw);
#endif
  }
  JAXCCOMP_HOST_DEVICE static uint32_t WidenExactly(uint32_t raw) {
    return BitsOf(ToFloat(Float16{static_cast<uint16_t>(raw)}));
  }
  JAXCCOMP_HOST_DEVICE static uint32_t NarrowNumber(uint32_t bits) {
#if defined(__CUDA_ARCH__)
    return __half_as_ushort(__float2half_rn(FloatOf(bits)));
#else
    return ToFloat16(FloatOf(bits)).bits;
#endif
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Narrow(uint32_t bits) {
    const uint32_t nan = (bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff);
    return IsNaN(bits) ? nan : NarrowNumber(bits);
  }
};

// acc + value, as raw, for sums that are NaN, with the bits of x86: the first operand that is NaN, quieted, else the
// default NaN.
template <typename T>
JAXCCOMP_HOST_DEVICE JAXCCOMP_RARE uint32_t NaNOfSum(uint32_t acc, uint32_t value) {
  const uint32_t quiet = kNaN & ~kInfinity;
  const uint32_t a = Real<T>::WidenExactly(acc), b = Real<T>::WidenExactly(value);
  const uint32_t bits = IsNaN(a) ? a | quiet : IsNaN(b) ? b | quiet : kNaN | ~kMagnitude;
  return Real<T>::Narrow(bits);
}

// acc + value as raw; rounds the value to T first.
template <typename T>
JAXCCOMP_HOST_DEVICE inline uint32_t Sum(uint32_t acc, uint32_t value_bits) {
  const uint32_t value = Real<T>::Narrow(value_bits);
  const uint32_t bits =
      BitsOf(FloatOf(Real<T>::Widen(acc)) + FloatOf(Real<T>::Widen(value)));
  return IsNaN(bits) ? NaNOfSum<T>(acc, value) : Real<T>::NarrowNumber(bits);
}

// kCount consecutive values in registers.
template <typename T, int kCount>
struct Run {
  static constexpr int kBytes = kCount * Real<T>::kBytes;
  static constexpr int kAccess = kBytes < kVectorBytes ? kBytes : kVectorBytes;
  Words<kAccess> words[kBytes / kAccess];

  JAXCCOMP_HOST_DEVICE uint32_t Get(int i) const {
    const int byte = i * Real<T>::kBytes;
    const uint32_t word = words[byte / kAccess].word[byte % kAccess / 4];
    return Real<T>::kBytes == 4 ? word : word >> (8 * (byte % 4)) & 0xffff;
  }
  // Call once for each value, in order.
  JAXCCOMP_HOST_DEVICE void Set(int i, uint32_t raw) {
    const int byte = i * Real<T>::kBytes;
    uint32_t& word = words[byte / kAccess].word[byte % kAccess / 4];
    word = byte % 4 == 0 ? raw : word | raw << 16;
  }
  JAXCCOMP_HOST_DEVICE void Load(const std::byte* at, int alignment) {
    JAXCCOMP_UNROLL
    for (int i = 0; i < kBytes / kAccess; ++i) {
      words[i] = cuda::Load<kAccess>(at + i * kAccess, alignment);
    }
  }
  JAXCCOMP_HOST_DEVICE void Store(std::byte* at, int alignment) const {
    JAXCCOMP_UNROLL
    for (int i = 0; i < kBytes / kAccess; ++i) {
      cuda::Store(at + i * kAccess, words[i], alignment);
    }
  }
};

// One value as raw.
template <typename T>
JAXCCOMP_HOST_DEVICE inline uint32_t LoadValue(const std::byte* values, int64_t index) {
  return LoadNumber<Real<T>::kBytes>(values + index * Real<T>::kBytes, Real<T>::kBytes);
}
template <typename T>
JAXCCOMP_HOST_DEVICE inline void StoreValue(std::byte* values, int64_t index, uint32_t raw) {
  StoreNumber<Real<T>::kBytes>(values + index * Real<T>::kBytes, raw, Real<T>::kBytes);
}

// Rounds a decoded float to T, or adds it to `acc` (kAdd).
template <typename T, bool kAdd>
JAXCCOMP_HOST_DEVICE inline uint32_t Put(uint32_t acc, uint32_t bits) {
  return kAdd ? Sum<T>(acc, bits) : Real<T>::Narrow(bits);
}
template <typename T, bool kAdd>
JAXCCOMP_HOST_DEVICE inline void PutValue(std::byte* values, int64_t index, uint32_t bits) {
  const uint32_t acc = kAdd ? LoadValue<T>(values, index) : 0;
  StoreValue<T>(values, index, Put<T, kAdd>(acc, bits));
}

// Calls f(TypeTag<T>{}) with the type of a dtype that has a Real.
template <typename F>
Status WithValues(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16: return f(TypeTag<Float16>{});
    case DType::kBFloat16: return f(TypeTag<BFloat16>{});
    default: return f(TypeTag<float>{});
  }
}

// The greatest finite value of a dtype.
inline float GreatestOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return 65504;
    case DType::kBFloat16: return 0x1.fep127f;
    default: return std::numeric_limits<float>::max();
  }
}

}  // namespace jaxccomp::cuda
