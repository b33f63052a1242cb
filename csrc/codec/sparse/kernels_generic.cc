#include "codec/sparse/kernels.h"

namespace jaxccomp::sparse {

extern const Kernels kGenericKernels;

namespace {

#include "codec/sparse/generic.inl"

template <typename Word>
int64_t AboveAll(const std::byte* src, int64_t count, Word threshold, uint16_t* offsets) {
  return AboveFrom(src, 0, count, threshold, offsets);
}

}  // namespace

constinit const Kernels kGenericKernels = TableOf("generic");

}  // namespace jaxccomp::sparse
