#include "codec/sparse/kernels.h"

namespace jaxccomp::sparse {

extern const Kernels kKernelsGeneric;

namespace {

#include "codec/sparse/generic.inl"

template <typename Word>
int64_t AboveAll(const std::byte* src, int64_t count, Word threshold, uint16_t* offsets) {
  return AboveFrom(src, 0, count, threshold, offsets);
}

}  // namespace

const Kernels kKernelsGeneric = {"generic",
                                 &AboveAll<uint16_t>,
                                 &AboveAll<uint32_t>,
                                 &AboveAll<uint64_t>,
                                 &AnyAboveIn<uint16_t>,
                                 &AnyAboveIn<uint32_t>,
                                 &AnyAboveIn<uint64_t>};

}  // namespace jaxccomp::sparse
