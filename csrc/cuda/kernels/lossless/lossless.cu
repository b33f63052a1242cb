#include "cuda/kernels/lossless/lossless.h"

#include <cuda_runtime.h>

#include "cuda/kernels/common/loaded.h"
#include "cuda/kernels/lossless/lossless_plan.cuh"

namespace jaxccomp::cuda {
namespace {

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kLaunchThreads, Kernel::kMinBlocks)
    Run(const __grid_constant__ Kernel kernel) {
  extern __shared__ __align__(16) uint8_t memory[];
  kernel(memory);
}

struct StreamLauncher {
  cudaStream_t stream;

  template <typename Kernel>
  int Launch(const Kernel& kernel, int64_t blocks, int shared_bytes) {
    static_cast<void>(kIsKnown<&Run<Kernel>>);
    const cudaError_t error = AllowShared<Kernel>(shared_bytes);
    if (error != cudaSuccess) return error;
    void* arguments[] = {const_cast<Kernel*>(&kernel)};
    return cudaLaunchKernel(reinterpret_cast<const void*>(&Run<Kernel>),
                            dim3(static_cast<unsigned>(blocks)), dim3(Kernel::kLaunchThreads),
                            arguments, static_cast<size_t>(shared_bytes), stream);
  }

  template <typename Kernel>
  int64_t Resident(int shared_bytes) {
    int device = 0, processors = 0, each = 0;
    if (AllowShared<Kernel>(shared_bytes) != cudaSuccess || cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) !=
            cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, Run<Kernel>, Kernel::kLaunchThreads,
                                                      shared_bytes) != cudaSuccess) {
      return 1;   // the launch will report the error
    }
    return AtLeastOne(static_cast<int64_t>(processors) * each);
  }

 private:
  template <typename Kernel>
  static cudaError_t AllowShared(int shared_bytes) {
    constexpr int kWithoutAsking = 48 << 10;
    if (shared_bytes <= kWithoutAsking) return cudaSuccess;
    return cudaFuncSetAttribute(Run<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                shared_bytes);
  }
};

}  // namespace

int64_t LosslessBoundBytes(lossless::Layout layout, int64_t words) {
  return lossless::kChunkHeaderBytes + SegmentsOf(words) +
         words * lossless::Info(layout).word_bytes;
}

int64_t LosslessEncodeWorkspaceBytes(lossless::Layout layout, int64_t words) {
  return WithLayout(layout, [=]<Layout known>() { return Workspaces<known>::Encode(words); });
}

int64_t LosslessDecodeWorkspaceBytes(lossless::Layout layout, int64_t words) {
  return WithLayout(layout, [=]<Layout known>() { return Workspaces<known>::Decode(words); });
}

int LosslessEncode(const LosslessEncodeCall& call, CUstream_st* stream) {
  StreamLauncher launcher{stream};
  return WithLayout(call.layout,
                    [&]<Layout known>() { return EncodeWith<known>(launcher, call); });
}

int LosslessDecode(const LosslessDecodeCall& call, CUstream_st* stream) {
  StreamLauncher launcher{stream};
  return WithLayout(call.layout,
                    [&]<Layout known>() { return DecodeWith<known>(launcher, call); });
}

}  // namespace jaxccomp::cuda
