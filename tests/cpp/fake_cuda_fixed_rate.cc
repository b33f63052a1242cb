#include "check.h"
#include "cuda/kernels/fixed_rate/dispatch.cuh"
#include "cuda_grid.h"
#include "fake_cuda_kernels.h"

namespace jaxccomp::testing {

using cuda::FixedRate;

void UseBodiesOfFixedRate(cuda::KernelTable* table) {
  table->encode = [](const FixedRate& fixed, DType dtype, const void* values, int64_t count,
                    void* code, const RandomKey& key, int64_t first, CUstream_st* stream) {
    return Put(stream, [=](auto reach) {
      std::lock_guard<std::mutex> lock(EmulatorMutex());
      CHECK_OK(cuda::DispatchEncode(fixed, dtype, reach(values), count, reach(code), key, first,
                                    LaunchHere{}));
    });
  };
  table->decode = [](const FixedRate& fixed, DType dtype, const void* code, void* values,
                    int64_t count, CUstream_st* stream) {
    return Put(stream, [=](auto reach) {
      std::lock_guard<std::mutex> lock(EmulatorMutex());
      CHECK_OK(cuda::DispatchDecode<false>(fixed, dtype, reach(code), dtype, reach(values), count,
                                           LaunchHere{}));
    });
  };
  table->decode_sum = [](const FixedRate& fixed, DType dtype, const void* code, DType acc_dtype,
                        void* acc, int64_t count, CUstream_st* stream) {
    return Put(stream, [=](auto reach) {
      std::lock_guard<std::mutex> lock(EmulatorMutex());
      CHECK_OK(cuda::DispatchDecode<true>(fixed, dtype, reach(code), acc_dtype, reach(acc), count,
                                          LaunchHere{}));
    });
  };
}

}  // namespace jaxccomp::testing
