#include "cuda/cuda_device.h"

#include <algorithm>

namespace jaxccomp::cuda {
namespace {

constexpr int64_t kAlignment = 256;

// While it lives, the thread uses the device's GPU.
class Using {
 public:
  explicit Using(CudaApi& api) : api_(api), error(api.Begin()) {}
  ~Using() {
    if (error == CudaApi::kSuccess) api_.End();
  }
  Using(const Using&) = delete;
  Using& operator=(const Using&) = delete;

 private:
  CudaApi& api_;

 public:
  const int error;
};

}  // namespace

CudaDevice::CudaDevice(CudaApi* api, const KernelTable* kernels, std::string name)
    : machine_(api, kernels, std::move(name)), marks_(api, &machine_.words, machine_.name) {}

Result<std::unique_ptr<CudaDevice>> CudaDevice::Make(CudaApi* api, const KernelTable* kernels,
                                                     std::string name, int streams) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(api, kernels, std::move(name)));
  if (Status status = device->MakeStreams(streams); !status.ok()) return status;
  return device;
}

Status CudaDevice::MakeStreams(int count) {
  const Using gpu(machine_.api);
  Status status = machine_.Check(gpu.error, "using the GPU");
  if (status.ok()) {
    status = machine_.Check(machine_.api.MakeStream(&memory_stream_), "making a stream");
  }
  for (int i = 0; i < count && status.ok(); ++i) {
    CUstream_st* stream = nullptr;
    status = machine_.Check(machine_.api.MakeStream(&stream), "making a stream");
    streams_.push_back(std::make_unique<Stream>(
        Stream{stream, Scratch(&machine_.api, stream, machine_.name), {}}));
  }
  return status;
}

// ---- Memory ------------------------------------------------------------------------------

std::byte* CudaDevice::AllocateValues(int64_t bytes) {
  const Using gpu(machine_.api);
  std::byte* memory = nullptr;
  if (machine_.api.Allocate(&memory, std::max<int64_t>(bytes, 1), memory_stream_) !=
      CudaApi::kSuccess) {
    return nullptr;
  }
  // Other streams may use it from now on.
  return machine_.api.Settle(memory_stream_) == CudaApi::kSuccess ? memory : nullptr;
}

void CudaDevice::FreeValues(std::byte* memory) {
  const Using gpu(machine_.api);
  // An error is the device's: whatever comes next finds it.
  static_cast<void>(machine_.api.Free(memory, memory_stream_));
}

std::byte* CudaDevice::AllocateCodes(int64_t bytes) {
  const int64_t size = (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  std::byte* memory = nullptr;
  const auto kept = free_codes_.lower_bound(size);
  if (kept != free_codes_.end() && kept->first <= 2 * size) {
    memory = kept->second;
    codes_.emplace(memory, kept->first);
    free_codes_.erase(kept);
    return memory;
  }
  const Using gpu(machine_.api);
  if (machine_.api.AllocatePinned(&memory, size) != CudaApi::kSuccess) return nullptr;
  codes_.emplace(memory, size);
  return memory;
}

void CudaDevice::FreeCodes(std::byte* memory) {
  const auto taken = codes_.find(memory);
  free_codes_.emplace(taken->second, memory);
  codes_.erase(taken);
}

std::byte* CudaDevice::AllocateShared(int64_t bytes) {
  const Using gpu(machine_.api);
  return machine_.shared.Allocate(bytes);
}

Result<std::string> CudaDevice::Export(const std::byte* memory) {
  const Using gpu(machine_.api);
  return machine_.shared.Export(memory);
}

Result<Device::Imported> CudaDevice::Import(std::string_view handle) {
  const Using gpu(machine_.api);
  return machine_.shared.Import(handle);
}

// ---- Calls -------------------------------------------------------------------------------

Result<Device::CallId> CudaDevice::Enter(void* stream) {
  if (!broken_.ok()) return broken_;
  const Using gpu(machine_.api);
  return marks_.Enter(static_cast<CUstream_st*>(stream));
}

Result<bool> CudaDevice::IsReady(CallId call) {
  if (!broken_.ok()) return broken_;
  const Using gpu(machine_.api);
  const int error = marks_.Query(call);
  if (error == CudaApi::kNotReady) return false;
  if (error == CudaApi::kSuccess) return true;
  Break(error);
  return broken_;
}

void CudaDevice::Leave(CallId call) { marks_.Leave(call); }

// ---- Computations ------------------------------------------------------------------------

Result<CUevent_st*> CudaDevice::TakeEvent() {
  if (!free_events_.empty()) {
    CUevent_st* const event = free_events_.back();
    free_events_.pop_back();
    return event;
  }
  CUevent_st* event = nullptr;
  if (Status status = machine_.Check(machine_.api.MakeEvent(&event), "making an event");
      !status.ok()) {
    return status;
  }
  return event;
}

void CudaDevice::Launch(Completion* done, const Start& start, Start next) {
  Stream& on = *streams_[next_stream_++ % streams_.size()];
  const Using gpu(machine_.api);
  UnderWay one{std::make_unique<Work>(&machine_, on.stream, &on.scratch), broken_, nullptr,
               std::move(next), done};
  // An event first: without one nobody would hear of the end.
  if (one.status.ok()) {
    Result<CUevent_st*> event = TakeEvent();
    if (event.ok()) one.event = *event;
    else one.status = event.status();
  }
  if (one.event != nullptr) {
    one.status = start(*one.work);
    if (const int error = machine_.api.Record(one.event, on.stream); error != CudaApi::kSuccess) {
      Break(error);
    }
  }
  on.under_way.push_back(std::move(one));
}

void CudaDevice::Copy(CallId, std::span<const CopyRun> runs, Completion* done) {
  Launch(done, [=](Work& work) { return work.Copy(runs); });
}

void CudaDevice::Encode(CallId, std::span<const EncodeRun> runs, Completion* done) {
  Launch(done, [=](Work& work) { return work.Encode(runs); });
}

// The host compares the checksums, and has the codes decoded where they are equal.
void CudaDevice::Decode(CallId, std::span<const DecodeRun> runs, Completion* done) {
  const bool referenced =
      std::any_of(runs.begin(), runs.end(), [](const DecodeRun& run) { return run.ref != nullptr; });
  if (!referenced) return Launch(done, [=](Work& work) { return work.Decode(runs); });
  Launch(
      done, [=](Work& work) { return work.CheckReferences(runs); },
      [all = std::vector(runs.begin(), runs.end())](Work& work) { return work.Decode(all); });
}

void CudaDevice::Merge(CallId, ReduceOp op, int64_t divisor, std::span<const MergeRun> runs,
                       Completion* done) {
  Launch(done, [=](Work& work) { return work.Merge(op, divisor, runs); });
}

void CudaDevice::Lose(CallId, int64_t times, std::span<const LoseRun> runs, Completion* done) {
  Launch(done, [=](Work& work) { return work.Lose(times, runs); });
}

void CudaDevice::Fill(CallId, std::span<const FillRun> runs, Completion* done) {
  Launch(done, [=](Work& work) { return work.Fill(runs); });
}

void CudaDevice::Break(int error) {
  if (!broken_.ok()) return;
  broken_ = {Code::kInternal,
             machine_.name + " has failed, and all that was under way on it with it: " +
                 machine_.api.Describe(error) +
                 ". Nothing can be computed there until the process is started anew"};
}

bool CudaDevice::Poll() {
  Over over;
  {
    const Using gpu(machine_.api);
    for (const auto& stream : streams_) PollStream(*stream, &over);
  }
  // They may start what comes next.
  for (auto& [done, status] : over) done->Done(std::move(status));
  return !over.empty();
}

void CudaDevice::PollStream(Stream& stream, Over* over) {
  while (!stream.under_way.empty()) {
    UnderWay& oldest = stream.under_way.front();
    if (broken_.ok() && oldest.event != nullptr) {
      const int error = machine_.api.Query(oldest.event);
      if (error == CudaApi::kNotReady) return;
      if (error != CudaApi::kSuccess) Break(error);
    }
    UnderWay ended = std::move(oldest);
    stream.under_way.pop_front();
    End(std::move(ended), over);
  }
}

void CudaDevice::End(UnderWay ended, Over* over) {
  if (ended.event != nullptr) free_events_.push_back(ended.event);
  Status status = !broken_.ok() ? broken_ : ended.status;
  if (status.ok()) status = ended.work->Outcome();
  if (status.ok() && ended.next != nullptr) return Launch(ended.done, ended.next);
  over->emplace_back(ended.done, std::move(status));
}

}  // namespace jaxccomp::cuda
