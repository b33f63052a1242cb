#include "cuda/kernels/lossless/lossless_plan.cuh"
#include "fake_cuda_kernels.h"
#include "lossless_grid.h"

namespace jaxccomp::testing {

using cuda::LosslessDecodeCall;
using cuda::LosslessEncodeCall;
using lossless::Layout;

void UseBodiesOfLossless(cuda::KernelTable* table) {
  table->lossless_encode_workspace_bytes = [](Layout layout, int64_t words) {
    return cuda::WithLayout(layout,
                            [=]<Layout l>() { return cuda::Workspaces<l>::Encode(words); });
  };
  table->lossless_decode_workspace_bytes = [](Layout layout, int64_t words) {
    return cuda::WithLayout(layout,
                            [=]<Layout l>() { return cuda::Workspaces<l>::Decode(words); });
  };
  table->lossless_encode = [](const LosslessEncodeCall& call, CUstream_st* stream) {
    return Error(Put(stream, [=](auto reach) {
      std::lock_guard<std::mutex> lock(EmulatorMutex());
      EmulatedLauncher launcher;
      const LosslessEncodeCall here = Reached(call, reach);
      cuda::WithLayout(call.layout,
                       [&]<Layout l>() { return cuda::EncodeWith<l>(launcher, here); });
    }));
  };
  table->lossless_decode = [](const LosslessDecodeCall& call, CUstream_st* stream) {
    return Error(Put(stream, [=](auto reach) {
      std::lock_guard<std::mutex> lock(EmulatorMutex());
      EmulatedLauncher launcher;
      const LosslessDecodeCall here = Reached(call, reach);
      cuda::WithLayout(call.layout,
                       [&]<Layout l>() { return cuda::DecodeWith<l>(launcher, here); });
    }));
  };
}

}  // namespace jaxccomp::testing
