// Instantiates the encoding kernels.
#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/fixed_rate/dispatch.cuh"

namespace jaxccomp::cuda {

Status Encode(const FixedRate& codec, DType dtype, const void* values, int64_t count, void* code,
              const uint32_t* step_dev, CUstream_st* stream) {
  return DispatchEncode(codec, dtype, values, count, code, step_dev, LaunchOn{stream});
}

}  // namespace jaxccomp::cuda
