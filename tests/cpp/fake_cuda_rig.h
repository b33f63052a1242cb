// A CudaDevice on a fake CUDA.
#pragma once

#include <cstring>
#include <vector>

#include "device_rig.h"
#include "fake_cuda.h"

namespace jaxccomp::testing {

struct HasFakeCuda {
  explicit HasFakeCuda(const cuda::KernelTable& kernels, int streams)
      : tested(3, streams, 20, kernels) {}
  FakeCudaDevice tested;
  FakeStream caller{5, 20};
};

class FakeCudaRig final : public HasFakeCuda, public DeviceRig {
 public:
  // With codecs that the device prepares, of all dtypes.
  explicit FakeCudaRig(const cuda::KernelTable& kernels = CpuKernels(), int streams = 3,
                       const std::vector<const Codec*>& codecs = {})
      : HasFakeCuda(kernels, streams), DeviceRig(tested.device()) {
    for (const Codec* codec : codecs) {
      for (int i = 0; i < kDTypeCount; ++i) {
        if (codec->Supports(static_cast<DType>(i))) {
          CHECK_OK(device.Prepare(*codec, static_cast<DType>(i)));
        }
      }
    }
    Begin(&caller);
  }
  ~FakeCudaRig() override {
    End();
    caller.Finish();
  }

  std::byte* Values(const Bytes& values, size_t offset = 0) override {
    std::byte* const at = tested.memory.Take(std::ssize(values) + 64) + offset;
    Put(at, values);
    return at;
  }
  void Put(std::byte* at, const Bytes& values) override {
    if (!values.empty()) std::memcpy(tested.memory.Shadow(at), values.data(), values.size());
  }
  Bytes Take(const std::byte* at, size_t bytes) override {
    const std::byte* const from = tested.memory.Shadow(at);
    return Bytes(from, from + bytes);
  }
};

}  // namespace jaxccomp::testing
