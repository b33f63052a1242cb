// Instantiates the decoding kernels.
#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/fixed_rate/dispatch.cuh"

namespace jaxccomp::cuda {

Status DecodeInto(const FixedRate& codec, DType dtype, const void* code, DType into, void* values,
                  int64_t count, CUstream_st* stream) {
  return DispatchDecode<false>(codec, dtype, code, into, values, count, LaunchOn{stream});
}

}  // namespace jaxccomp::cuda
