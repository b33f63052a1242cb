// CUDA without a GPU, for tests of cuda::CudaDevice: streams are threads, and kernels the CPU's
// functions of the same names, or their own bodies run by the emulator.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/host/api.h"
#include "cuda/host/cuda_device.h"
#include "fake_context.h"
#include "fake_stream.h"
#include "tested_device.h"

namespace jaxccomp::testing {

// Streams of callers are FakeStreams too.
class FakeCuda final : public cuda::CudaApi {
 public:
  // What a GPU that has failed says to everything.
  static constexpr int kIllegalAddress = 700;

  // With a context its streams have that one's limits; without, none.
  FakeCuda(FakeMemory* memory, Faults* faults, uint32_t seed, int longest_delay_us,
           FakeContext* context = nullptr);
  ~FakeCuda() override;

  void Hold(bool held);
  void Abandon();
  // From now on the device has failed.
  void Break() { broken_ = true; }
  int64_t computations() const { return computations_.load(); }
  FakeMemory& memory() const { return memory_; }

  // Whose stream it is.
  static FakeCuda& Of(CUstream_st* stream) {
    return *static_cast<OwnStream*>(StreamOf(stream))->cuda;
  }
  // The one that the calling thread uses.
  static FakeCuda& Current();
  // Whether the calling thread uses any.
  static bool IsUsed();
  // Fails the test where a caller's stream waits for the engine: it would wait for that, too.
  Status PrepareNvcomp(nvcomp::Format format, DType dtype);
  bool HasPreparedNvcomp(nvcomp::Format format, DType dtype);
  int64_t held_streams() const { return held_streams_.load(); }
  int64_t preparations() const { return preparations_.load(); }
  // How often callers' streams have been marked.
  int64_t marks() const { return marks_.load(); }
  // Puts a kernel on one of the device's streams.
  Status Start(CUstream_st* stream, std::function<void()> work);

  std::string Describe(int error) const override;
  int Begin() override;
  void End() override;
  int Allocate(std::byte** memory, int64_t bytes, CUstream_st* stream) override;
  int Free(std::byte* memory, CUstream_st* stream) override;
  int FreeBytes(int64_t* free_bytes, int64_t* all_bytes) override;
  int AllocatePinned(std::byte** memory, int64_t bytes) override;
  int AllocateShared(std::byte** memory, int64_t bytes) override;
  int Export(IpcKey* key, std::byte* memory) override;
  int Import(std::byte** memory, int64_t* bytes, const IpcKey& key) override;
  int ReachPeer(const Uuid& gpu) override;
  Uuid OwnUuid() const override;
  uint64_t ProcessNumber() const override { return process_; }
  // Each is in a process of its own, until told.
  void SetProcess(uint64_t process) { process_ = process; }
  int MakeStream(CUstream_st** stream) override;
  int MakeEvent(CUevent_st** event) override;
  int Record(CUevent_st* event, CUstream_st* stream) override;
  int Query(CUevent_st* event) override;
  int WaitAtLeast(CUstream_st* stream, uint32_t* word, uint32_t value) override;
  int Settle(CUstream_st* stream) override;
  int Copy(void* to, const void* from, int64_t bytes, CUstream_st* stream) override;
  int SetZero(void* to, int64_t bytes, CUstream_st* stream) override;

 private:
  struct Event {
    std::atomic<int64_t> recorded{0}, passed{0};
    std::atomic<bool> of_caller{false};
  };
  struct OwnStream : FakeStream {
    OwnStream(FakeCuda* of, uint32_t seed, int delay_us) : FakeStream(seed, delay_us), cuda(of) {}
    OwnStream(FakeCuda* of, FakeContext* context) : FakeStream(context), cuda(of) {}
    FakeCuda* const cuda;
  };
  static FakeStream* StreamOf(CUstream_st* stream) { return reinterpret_cast<FakeStream*>(stream); }
  bool IsOwn(CUstream_st* stream) const;
  // Puts work on the stream that computes: it stands still while computations are held.
  int Enqueue(CUstream_st* stream, std::function<void()> work);
  // Until no caller's stream stands, where that is one of the limits.
  void WaitForStreams();
  int Now() const { return broken_ ? kIllegalAddress : kSuccess; }

  FakeMemory& memory_;
  Faults& faults_;
  const uint32_t seed_;
  const int longest_delay_us_;
  FakeContext* const context_;
  uint64_t process_;
  std::mutex mutex_;
  std::condition_variable released_;
  bool held_ = false;
  std::atomic<bool> broken_{false}, abandoned_{false};
  std::atomic<int64_t> computations_{0}, preparations_{0}, held_streams_{0}, marks_{0};
  std::set<std::pair<nvcomp::Format, DType>> nvcomp_;
  std::vector<std::pair<uint32_t*, uint32_t>> waits_;   // of callers' streams
  std::set<std::byte*> values_;   // taken on the first stream, which does nothing else
  // The pool keeps what it has: more waits for the GPU.
  std::map<std::byte*, int64_t> in_use_;
  int64_t in_use_bytes_ = 0, pool_bytes_ = 0;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<OwnStream>> streams_;
};

// Kernels on a FakeCuda's streams: the functions of the CPU, or, of codecs, the bodies of the kernels.
const cuda::KernelTable& CpuKernels();
const cuda::KernelTable& EmulatedKernels();

class FakeCudaDevice final : public TestedDevice {
 public:
  explicit FakeCudaDevice(uint32_t seed = 1, int streams = 3, int longest_delay_us = 100,
                          const cuda::KernelTable& kernels = CpuKernels(),
                          FakeContext* context = nullptr);

  Device& device() override { return *device_; }
  void Hold(bool held) override { api_.Hold(held); }
  void Abandon() override { api_.Abandon(); }
  int64_t computations() const override { return api_.computations(); }
  int64_t held_streams() const override { return api_.held_streams(); }
  int64_t preparations() const override { return api_.preparations(); }
  FakeCuda& api() { return api_; }

 private:
  std::unique_ptr<cuda::CudaDevice> device_;
  FakeCuda api_;   // goes first: its streams use the device's memory
};

}  // namespace jaxccomp::testing
