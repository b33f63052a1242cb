// device/device.h on a GPU.
//
// Computations go to a few streams of the device's own in turn, each with an event behind it. Nothing
// waits for the device, and nothing is freed in a way that does: callers' streams may stand still until
// the engine lets them go on, so whoever waited for all of the device would wait for ever.
//
// When CUDA says of an event that the device has failed, it stays so: all that is under way, and all
// that comes, ends with that error.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/host/api.h"
#include "cuda/host/scratch.h"
#include "cuda/host/stream_gates.h"
#include "cuda/host/stream_trial.h"
#include "cuda/host/work.h"
#include "device/device.h"
#include "device/shared_arena.h"

namespace jaxccomp::cuda {

class CudaDevice final : public Device {
 public:
  // Both outlive the device, which is never taken down: CUDA's objects are not given back.
  static Result<std::unique_ptr<CudaDevice>> Make(CudaApi* api, const KernelTable* kernels,
                                                  std::string name, int streams = 4);

  std::string_view name() const override { return context_.name; }
  Uuid uuid() const override { return context_.api.OwnUuid(); }
  bool Runs(const Codec& codec, DType dtype) const override;
  bool IsPrepared(const Codec& codec, DType dtype) const override;
  Status Prepare(const Codec& codec, DType dtype) override;

  std::byte* AllocateValues(int64_t bytes) override;
  void FreeValues(std::byte* memory) override;
  std::byte* AllocateCodes(int64_t bytes) override;
  void FreeCodes(std::byte* memory) override;

  std::byte* AllocateShared(int64_t bytes) override;
  void FreeShared(std::byte* memory) override { context_.shared.Free(memory); }
  Result<std::string> Export(const std::byte* memory) override;
  Result<Imported> Import(std::string_view handle) override;
  void Release(const std::byte* imported) override { context_.shared.Release(imported); }
  bool Bind() override;
  void Unbind() override;

  Status CheckHolds(void* stream) override;
  Status Reserve(int64_t bytes) override;
  Result<CallId> Enter(void* stream, bool holds) override;
  Result<bool> IsReady(CallId call) override;
  void Leave(CallId call) override;
  void LetPass(CallId call) override { gates_.LetPass(call); }

  void Copy(CallId call, std::span<const CopyRun> runs, Completion* done) override;
  void Encode(CallId call, std::span<const EncodeRun> runs, Completion* done) override;
  void Decode(CallId call, std::span<const DecodeRun> runs, Completion* done) override;
  void Merge(CallId call, ReduceOp op, int64_t divisor, std::span<const MergeRun> runs,
             Completion* done) override;
  void Residual(CallId call, int64_t times, std::span<const ResidualRun> runs, Completion* done) override;
  void Fill(CallId call, std::span<const FillRun> runs, Completion* done) override;
  bool Poll() override;

 private:
  using Computation = std::function<Status(Work&)>;
  struct UnderWay {
    std::unique_ptr<Work> work;
    Status status;                  // of the start
    CUevent_st* event = nullptr;    // null where there is none
    int error = CudaApi::kSuccess;  // of recording it
    Computation next;               // once this has gone well; null: none
    Completion* done = nullptr;
  };
  struct Stream {
    CUstream_st* stream;
    Scratch scratch;
    std::deque<std::unique_ptr<UnderWay>> under_way;
  };
  using Over = std::vector<std::pair<Completion*, Status>>;

  CudaDevice(CudaApi* api, const KernelTable* kernels, std::string name);
  Status MakeStreams(int count);
  Result<std::unique_ptr<Stream>> MakeStream();
  // Puts a computation on the next stream, and `next` on another one when it has gone well.
  void Launch(Completion* done, const Computation& computation, Computation next = nullptr);
  void PollStream(Stream& stream, Over* over);
  void End(UnderWay& ended, Over* over);
  // The device has failed for good.
  void Break(int error);
  Result<CUevent_st*> TakeEvent();

  DeviceContext context_;
  StreamGates gates_;
  StreamTrial trial_;
  Status broken_;
  CUstream_st* memory_stream_ = nullptr;   // takes memory and gives it back
  std::vector<std::unique_ptr<Stream>> streams_;
  size_t next_stream_ = 0;
  mutable std::mutex prepared_mutex_;
  std::set<std::pair<std::string, DType>> prepared_;
  std::vector<CUevent_st*> free_events_;
  std::unique_ptr<SharedArena> reserve_;            // pinned memory that was set aside
  std::map<std::byte*, std::shared_ptr<SharedArena::Block>> reserved_;   // blocks of it that are taken
  std::map<std::byte*, int64_t> codes_;             // other pinned blocks that are taken, with their sizes
  std::multimap<int64_t, std::byte*> free_codes_;   // and those that are not, by size
};

}  // namespace jaxccomp::cuda
