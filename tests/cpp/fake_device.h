// A device without an accelerator, for tests: computations run on threads, after random delays, with
// the CPU's codecs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "fake_stream.h"
#include "tested_device.h"

namespace jaxccomp::testing {

class FakeDevice final : public TestedDevice, public Device {
 public:
  // Its destructor checks that all memory was given back and all calls were left.
  explicit FakeDevice(uint32_t seed = 1, int streams = 3, int longest_delay_us = 100);
  ~FakeDevice() override;

  Device& device() override { return *this; }
  void Hold(bool held) override;
  void Abandon() override;
  int64_t computations() const override { return computations_.load(); }
  int64_t held_streams() const override { return held_streams_.load(); }
  int64_t preparations() const override { return preparations_.load(); }

  std::string_view name() const override { return "fake:0"; }
  bool Runs(const Codec& codec, DType dtype) const override {
    return codec.traits().spec != "ternary" && (codec.traits().lossless || dtype != DType::kFloat64);
  }
  bool IsPrepared(const Codec& codec, DType dtype) const override;
  Status Prepare(const Codec& codec, DType dtype) override;
  std::byte* AllocateValues(int64_t bytes) override;
  void FreeValues(std::byte* values) override;
  std::byte* AllocateCodes(int64_t bytes) override;
  void FreeCodes(std::byte* codes) override;
  std::byte* AllocateShared(int64_t bytes) override;
  void FreeShared(std::byte* shared) override { memory.GiveSharedBack(shared); }
  Result<std::string> Export(const std::byte* shared) override;
  Result<Imported> Import(std::string_view handle) override;
  void Release(const std::byte* imported) override { memory.Release(imported); }
  bool Bind() override;
  void Unbind() override;
  // Whether the calling thread's current device is one of these.
  static bool IsBound();
  Result<CallId> Enter(void* stream, bool holds) override;
  Result<bool> IsReady(CallId call) override;
  void Leave(CallId call) override;
  void LetPass(CallId call) override;
  void Copy(CallId call, std::span<const CopyRun> runs, Completion* done) override;
  void Encode(CallId call, std::span<const EncodeRun> runs, Completion* done) override;
  void Decode(CallId call, std::span<const DecodeRun> runs, Completion* done) override;
  void Merge(CallId call, ReduceOp op, int64_t divisor, std::span<const MergeRun> runs,
             Completion* done) override;
  void Residual(CallId call, int64_t times, std::span<const ResidualRun> runs, Completion* done) override;
  void Fill(CallId call, std::span<const FillRun> runs, Completion* done) override;
  bool Poll() override;

 private:
  struct EnteredCall {
    std::mutex mutex;
    std::condition_variable wake;
    bool reached = false, left = false;
    int running = 0;
  };
  void Launch(CallId call, Completion* done, std::function<Status()> work);
  std::byte* Reach(const void* address) const { return memory.Reach(address); }
  std::byte* Shadow(const void* address) const { return memory.Shadow(address); }
  void CheckPinned(const void* code, int64_t bytes) const { memory.CheckPinned(code, bytes); }
  // Checks the place of a code, and says where it may be touched.
  std::span<const std::byte> ReadCode(std::span<const std::byte> code) const {
    memory.CheckCode(code.data(), std::ssize(code), /*read=*/true);
    return {Reach(code.data()), code.size()};
  }

  mutable std::mutex mutex_;
  std::map<CallId, std::shared_ptr<EnteredCall>> calls_;
  CallId next_call_ = 1;
  std::vector<std::pair<Completion*, Status>> over_;
  std::condition_variable released_;
  bool held_ = false, abandoned_ = false;
  std::atomic<int64_t> computations_{0}, preparations_{0}, held_streams_{0};
  std::set<std::pair<std::string, DType>> prepared_;
  size_t next_stream_ = 0;
  std::vector<std::unique_ptr<FakeStream>> streams_;
};

}  // namespace jaxccomp::testing
