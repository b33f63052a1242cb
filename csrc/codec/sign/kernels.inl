// The body of kernels_generic.cc, kernels_avx2.cc and kernels_avx512.cc, each compiled with its own
// instruction-set flags. The loops are written for the compiler to vectorise (-O3).
//
// Everything is in an unnamed namespace and calls nothing of the standard library, so that the linker
// cannot use a function compiled for a newer processor on an older one.
//
// Results do not depend on whether the thread flushes subnormals (XLA's do): magnitudes are compared as
// integers, and values near the subnormal range count as 0.
//
// Before including it, define JAXCCOMP_KERNELS (the variable to define) and JAXCCOMP_KERNELS_NAME.
#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "codec/float_kernels.h"
#include "codec/sign/kernels.h"

namespace jaxccomp::sign {
namespace {

constexpr uint32_t kMinScale = 27u << 23;   // 2^-100: smaller scales and means become 0

inline void StoreFloat(uint32_t bits, std::byte* at) {
  *reinterpret_cast<Unaligned<uint32_t>*>(at) = bits;
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
