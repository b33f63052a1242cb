// The kernels that encode.
#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/fixed_rate/dispatch.cuh"

namespace jaxccomp::cuda {

Result<int64_t> EncodedBytes(const FixedRate& codec, int64_t count) {
  if (Status status = CheckCall(codec, count); !status.ok()) return status;
  return HeaderBytes(codec, count) + CodeBytes(codec, count);
}

Status Encode(const FixedRate& codec, DType dtype, const void* values, int64_t count, void* code,
              const RandomKey& key, int64_t first, CUstream_st* stream) {
  return DispatchEncode(codec, dtype, values, count, code, key, first, LaunchOn{stream});
}

Status EncodeDrawing(const FixedRate& codec, DType dtype, const void* values, int64_t count,
                     void* code, const uint32_t* step_dev, CUstream_st* stream) {
  return DispatchEncode(codec, dtype, values, count, code, {}, 0, LaunchOn{stream}, step_dev);
}

}  // namespace jaxccomp::cuda
