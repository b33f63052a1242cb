// The body of kernels_generic.cc, kernels_avx2.cc and kernels_avx512.cc, each compiled with its own
// instruction-set flags. The loops are written for the compiler to vectorise (-O3).
//
// Everything lives in an unnamed namespace and nothing of the standard library is called, so that
// no function compiled for a newer processor can be linked in where an older one runs.
//
// No result depends on whether the thread flushes subnormals (XLA's do): magnitudes are compared as
// integers, and what is small enough to matter is taken as 0.
//
// Before including it, define JAXCCOMP_KERNELS (the variable to define) and JAXCCOMP_KERNELS_NAME.
#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "codec/sign/kernels.h"

// The iterations of the next loop do not depend on each other: no output overlaps an input.
#if defined(__clang__)
#define JAXCCOMP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define JAXCCOMP_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace jaxccomp::sign {
namespace {

// T as it lies in memory at any address, whatever the memory was declared as.
template <typename T>
struct InMemory {
  typedef T Type __attribute__((aligned(1), may_alias));
};
template <typename T>
using Unaligned = typename InMemory<T>::Type;

using Bits = Unaligned<uint32_t>;

inline uint32_t BitsOf(float value) { return __builtin_bit_cast(uint32_t, value); }
inline float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }

constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinity = 0x7f800000;
constexpr uint32_t kNaN = 0x7fc00000;
constexpr uint32_t kLeast = 27u << 23;   // 2^-100: scales and means below are 0

inline void StoreFloat(uint32_t bits, std::byte* at) {
  *reinterpret_cast<Unaligned<uint32_t>*>(at) = bits;
}

template <bool kAdd>
inline void Put(Unaligned<float>* to, float value) {
  if constexpr (kAdd) {
    *to = *to + value;
  } else {
    *to = value;
  }
}

#include "codec/sign/onebit.inl"
#include "codec/sign/pairs.inl"

}  // namespace

extern const Kernels JAXCCOMP_KERNELS;
constinit const Kernels JAXCCOMP_KERNELS = {
    .name = JAXCCOMP_KERNELS_NAME,
    .encode_onebit = &EncodeOneBit,
    .encode_ternary = &EncodeTernary,
    .encode_threshold = &EncodeThreshold,
    .decode_onebit = {&DecodeOneBit<false>, &DecodeOneBit<true>},
    .decode_pairs = {&DecodePairs<false>, &DecodePairs<true>},
};

}  // namespace jaxccomp::sign
