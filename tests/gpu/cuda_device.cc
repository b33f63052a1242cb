// The device of libjaxccomp_cuda.so, while its caller's stream stands still in front of a call: were
// anything to wait for all of the GPU, it would wait for ever.
#include "cuda_device.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "cuda/library.h"
#include "device.h"
#include "device_cases.h"

namespace jaxccomp {
namespace {

using namespace testing;

// Ends the program unless it is gone in time.
class Watchdog {
 public:
  ~Watchdog() {
    over_ = true;
    thread_.join();
  }

 private:
  static constexpr int kSeconds = 90;
  void Watch() {
    for (int i = 0; i < kSeconds * 10 && !over_; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    if (over_) return;
    std::fprintf(stderr, "a device's computation waits for its caller's stream\n");
    std::_Exit(1);
  }

  std::atomic<bool> over_{false};
  std::thread thread_{[this] { Watch(); }};
};

class GpuRig final : public DeviceRig {
 public:
  explicit GpuRig(Device& device) : DeviceRig(device) {
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

}  // namespace

bool CompareDevice() {
  std::string reason;
  Device* const device = jaxccomp_cuda_device(0, &reason);
  if (device == nullptr) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    return false;
  }
  const Watchdog watchdog;
  const int64_t before = FailedChecks();
  for (int round = 0; round < 2; ++round) {
    GpuRig rig(*device);
    CodeAll(rig, {0, 1, 777, 70001});
    MergeAll(rig, 0);
    MergeAll(rig, 1501);
    LoseAll(rig, {0, 1, 2003});
    device->FreeValues(device->AllocateValues(int64_t{64} << 20));
    device->FreeCodes(device->AllocateCodes(int64_t{64} << 20));
  }
  const int64_t differ = FailedChecks() - before;
  std::printf("{\"device\": \"%s\", \"failed\": %lld}\n", std::string(device->name()).c_str(),
              static_cast<long long>(differ));
  return differ == 0;
}

}  // namespace jaxccomp
