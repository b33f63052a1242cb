// A GPU without hardware: the CPU's codecs run the work of a FakeStream, in memory that host code cannot touch.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cuda/gpu.h"
#include "fake_memory.h"
#include "fake_stream.h"

namespace jaxccomp::testing {

// Injected failures: the n-th call from now on fails, counted from 1; 0: none.
struct Faults {
  std::atomic<int> copy{0}, encode{0}, decode{0}, pinned{0}, code{0};
  static bool Due(std::atomic<int>& fault) { return fault.load() > 0 && --fault == 0; }
};

// Has kernels of "lossless" for all its dtypes except int8.
class FakeGpu final : public Gpu {
 public:
  explicit FakeGpu(std::string name) : name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  bool Runs(const Codec& codec, DType dtype) const override;
  Status Prepare(const Codec&, DType) override { return Status::Ok(); }
  std::byte* AllocatePinned(int64_t bytes) override;
  void FreePinned(std::byte* pinned) override { memory.GivePinnedBack(pinned); }
  Status Copy(std::span<const CopyRun> runs, void* stream) override;
  Status Zero(std::byte* to, int64_t bytes, void* stream) override;
  Status Encode(std::span<const EncodeRun> runs, void* stream) override;
  Status Decode(std::span<const DecodeRun> runs, void* stream) override;
  Result<std::unique_ptr<Event>> MakeEvent() override;

  // Totals of copied bytes and of encoded output.
  std::atomic<int64_t> copied_bytes{0}, encoded_bytes{0};
  Faults faults;
  FakeMemory memory;

 private:
  Status Injected(const char* what) const {
    return {Code::kUnavailable, name_ + ": injected: " + what};
  }
  const std::string name_;
};

}  // namespace jaxccomp::testing
