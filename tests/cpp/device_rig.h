// A device with a call that has begun, its memory, and one computation after the other.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "common/completion.h"
#include "device/device.h"
#include "lossy_codecs.h"

namespace jaxccomp::testing {

struct Told final : Completion {
  void Done(Status told) override {
    status = std::move(told);
    over = true;
  }
  Status status;
  bool over = false;
};

class DeviceRig {
 public:
  virtual ~DeviceRig() = default;

  template <typename F>
  static void Until(F over) {
    for (int i = 0; i < 200000 && !over(); ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  // Device memory of the test's own, `offset` behind an aligned address; kept until the end.
  virtual std::byte* Values(const Bytes& values, size_t offset = 0) = 0;
  virtual void Put(std::byte* at, const Bytes& values) = 0;
  virtual Bytes Take(const std::byte* at, size_t bytes) = 0;

  std::span<std::byte> Pinned(size_t bytes) {
    pinned_.push_back(device.AllocateCodes(static_cast<int64_t>(bytes) + 8));
    return {pinned_.back(), bytes};
  }
  // A code that has arrived, at any address.
  std::span<const std::byte> Code(const Bytes& code) {
    const std::span<std::byte> room = Pinned(code.size() + 3).subspan(code.size() % 4);
    std::copy(code.begin(), code.end(), room.begin());
    return room.first(code.size());
  }

  // Starts a computation and waits for its end.
  template <typename F>
  Status Do(F start) {
    Told told;
    start(&told);
    CHECK(!told.over);
    Until([&] {
      device.Poll();
      return told.over;
    });
    if (!CHECK(told.over)) std::abort();
    return told.status;
  }
  Status Merge(ReduceOp op, int64_t divisor, const Device::MergeRun& run) {
    return Do([&](Completion* done) { device.Merge(call, op, divisor, std::span(&run, 1), done); });
  }
  Status Decode(const Device::DecodeRun& run) {
    return Do([&](Completion* done) { device.Decode(call, std::span(&run, 1), done); });
  }
  Status Encode(const Device::EncodeRun& run) {
    return Do([&](Completion* done) { device.Encode(call, std::span(&run, 1), done); });
  }
  Status Residual(int64_t times, const Device::ResidualRun& run) {
    return Do([&](Completion* done) { device.Residual(call, times, std::span(&run, 1), done); });
  }

  Device& device;
  Device::CallId call = 0;

 protected:
  explicit DeviceRig(Device& d) : device(d) {}
  void Begin(void* stream) {
    call = *device.Enter(stream, /*holds=*/true);
    Until([&] {
      const Result<bool> ready = device.IsReady(call);
      return CHECK_OK(ready) && *ready;
    });
  }
  // Before the caller's stream ends.
  void End() {
    device.Leave(call);
    for (std::byte* memory : pinned_) device.FreeCodes(memory);
  }

 private:
  std::vector<std::byte*> pinned_;
};

}  // namespace jaxccomp::testing
