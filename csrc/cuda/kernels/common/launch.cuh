// Launches bodies as kernels on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>
#include <string>

#include "common/dtype.h"
#include "common/status.h"
#include "cuda/kernels/common/lanes.cuh"
#include "cuda/kernels/common/loaded.h"

namespace jaxccomp::cuda {

struct LaunchOn {
  CUstream_st* stream;

  template <typename Body>
  Status operator()(TypeTag<Body>, const typename Body::Job& job, int64_t ctas) const {
    static_cast<void>(kIsKnown<&Kernel<Body>>);
    if (ctas > std::numeric_limits<int32_t>::max()) {
      return {Code::kInvalidArgument, "too many values for one kernel: " + std::to_string(ctas) +
                                          " CTAs, of 2147483647 at most; code smaller chunks"};
    }
    void* arguments[] = {const_cast<typename Body::Job*>(&job)};
    const cudaError_t error = cudaLaunchKernel(
        reinterpret_cast<const void*>(&Kernel<Body>), dim3(static_cast<unsigned>(ctas)),
        dim3(kThreads), arguments, 0, stream);
    if (error == cudaSuccess) return Status::Ok();
    return {Code::kUnavailable,
            std::string("a CUDA kernel did not start: ") + cudaGetErrorString(error)};
  }
};

}  // namespace jaxccomp::cuda
