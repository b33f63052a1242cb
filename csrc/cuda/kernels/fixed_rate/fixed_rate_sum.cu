// Instantiates the kernels that decode and add.
#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/fixed_rate/dispatch.cuh"

namespace jaxccomp::cuda {

Status DecodeSum(const FixedRate& codec, DType dtype, const void* code, DType acc_dtype, void* acc,
                 int64_t count, CUstream_st* stream) {
  return DispatchDecode<true>(codec, dtype, code, acc_dtype, acc, count, LaunchOn{stream});
}

}  // namespace jaxccomp::cuda
