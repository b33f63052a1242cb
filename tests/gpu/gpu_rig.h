// A GPU with a call that has begun: its caller's stream stands still meanwhile.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdlib>

#include "device.h"
#include "device_cases.h"

namespace jaxccomp::testing {

class GpuRig final : public DeviceRig {
 public:
  // With codecs that the device prepares for `kDeviceDTypes`.
  explicit GpuRig(Device& device, const Codecs& codecs = {}) : DeviceRig(device) {
    for (const Codec* codec : codecs) {
      for (DType dtype : kDeviceDTypes) {
        if (codec->Supports(dtype)) CHECK_OK(device.Prepare(*codec, dtype));
      }
    }
    for (cudaStream_t* stream : {&caller_, &own_}) {
      Cuda(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreate");
    }
    Begin(caller_);
    CHECK_EQ(static_cast<int>(cudaStreamQuery(caller_)), static_cast<int>(cudaErrorNotReady));
    static_cast<void>(cudaGetLastError());
  }
  ~GpuRig() override {
    CHECK_EQ(static_cast<int>(cudaStreamQuery(caller_)), static_cast<int>(cudaErrorNotReady));
    static_cast<void>(cudaGetLastError());
    End();
    Cuda(cudaStreamSynchronize(caller_), "the caller's stream");
  }

  std::byte* Values(const Bytes& values, size_t offset = 0) override {
    std::byte* const at = device.AllocateValues(std::ssize(values) + 64);
    if (at == nullptr) std::abort();
    Put(at + offset, values);
    return at + offset;
  }
  void Put(std::byte* at, const Bytes& values) override { Copy(at, values.data(), values.size()); }
  Bytes Take(const std::byte* at, size_t bytes) override {
    Bytes values(bytes);
    Copy(values.data(), at, bytes);
    return values;
  }

 private:
  void Copy(void* to, const void* from, size_t bytes) {
    Cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, own_), "a copy");
    Cuda(cudaStreamSynchronize(own_), "a copy");
  }

  cudaStream_t caller_ = nullptr, own_ = nullptr;
};

}  // namespace jaxccomp::testing
