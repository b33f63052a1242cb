// The body of kernels_generic.cc, kernels_avx2.cc and kernels_avx512.cc, each compiled with its own
// instruction-set flags. The loops are written for the compiler to vectorise (-O3).
//
// Everything is in an unnamed namespace and calls nothing of the standard library, so that the linker
// cannot use a function compiled for a newer processor on an older one.
//
// Before including it, define JAXCCOMP_KERNELS (the variable to define) and JAXCCOMP_KERNELS_NAME.
#include <cstdint>

#include "codec/cast/kernels.h"
#include "common/half.h"
#include "common/loops.h"

namespace jaxccomp::cast {
namespace {

template <typename T>
void Round(void* dst, const void* src, const uint16_t* random, int64_t count) {
  auto* out = static_cast<Unaligned<uint16_t>*>(dst);
  auto* in = static_cast<const Unaligned<T>*>(src);
  JAXCCOMP_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    out[i] = ToBFloat16(static_cast<float>(in[i]), random[i]).bits;
  }
}

}  // namespace

extern const Kernels JAXCCOMP_KERNELS;
constinit const Kernels JAXCCOMP_KERNELS = {
    .name = JAXCCOMP_KERNELS_NAME,
    .float_to_bfloat16 = &Round<float>,
    .double_to_bfloat16 = &Round<double>,
};

}  // namespace jaxccomp::cast
