#include "cuda/host/cuda_device.h"

#include <algorithm>
#include <chrono>

namespace jaxccomp::cuda {
namespace {

constexpr int64_t kAlignment = 256;
// How long a stream that is tried stands at most. Kernels and copies of some KiB take microseconds.
constexpr auto kLongestTrial = std::chrono::milliseconds(1000);
// What is made beforehand for so many calls and computations at a time.
constexpr size_t kReservedEvents = 256;

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
    : context_(api, kernels, std::move(name)), gates_(api, &context_.words, context_.name),
      trial_(&context_, kLongestTrial) {}

Result<std::unique_ptr<CudaDevice>> CudaDevice::Make(CudaApi* api, const KernelTable* kernels,
                                                     std::string name, int streams) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(api, kernels, std::move(name)));
  if (Status status = device->MakeStreams(streams); !status.ok()) return status;
  return device;
}

Status CudaDevice::MakeStreams(int count) {
  const Using gpu(context_.api);
  Status status = context_.Check(gpu.error, "using the GPU");
  if (status.ok()) {
    status = context_.Check(context_.api.MakeStream(&memory_stream_), "making a stream");
  }
  for (int i = 0; i < count && status.ok(); ++i) {
    Result<std::unique_ptr<Stream>> stream = MakeStream();
    if (!stream.ok()) return stream.status();
    streams_.push_back(std::move(*stream));
  }
  if (!status.ok()) return status;
  std::vector<CUstream_st*> own = {memory_stream_};
  for (const auto& stream : streams_) own.push_back(stream->stream);
  return trial_.Prepare(own);
}

Result<std::unique_ptr<CudaDevice::Stream>> CudaDevice::MakeStream() {
  CUstream_st* stream = nullptr;
  Status status = context_.Check(context_.api.MakeStream(&stream), "making a stream");
  if (!status.ok()) return status;
  return std::unique_ptr<Stream>(
      new Stream{stream, Scratch(&context_.api, stream, context_.name), {}});
}

// ---- Codecs ------------------------------------------------------------------------------

bool CudaDevice::Runs(const Codec& codec, DType dtype) const {
  const std::optional<Coding> coding = FindCoding(codec);
  return coding && coding->CheckDType(dtype).ok();
}

bool CudaDevice::IsPrepared(const Codec& codec, DType dtype) const {
  const std::optional<Coding> coding = FindCoding(codec);
  if (!coding || !coding->nvcomp) return true;
  std::lock_guard lock(prepared_mutex_);
  return prepared_.contains({codec.traits().spec, dtype});
}

Status CudaDevice::Prepare(const Codec& codec, DType dtype) {
  if (IsPrepared(codec, dtype)) return Status::Ok();
  const Coding coding = *FindCoding(codec);
  const Using gpu(context_.api);
  Status status = context_.Check(gpu.error, "using the GPU");
  if (status.ok()) {
    status = context_.kernels.nvcomp_prepare(*coding.nvcomp, coding.LastDType(dtype));
  }
  if (!status.ok()) return status;
  std::lock_guard lock(prepared_mutex_);
  prepared_.emplace(codec.traits().spec, dtype);
  return status;
}

// ---- Memory ------------------------------------------------------------------------------

std::byte* CudaDevice::AllocateValues(int64_t bytes) {
  const Using gpu(context_.api);
  std::byte* memory = nullptr;
  if (context_.api.Allocate(&memory, std::max<int64_t>(bytes, 1), memory_stream_) !=
      CudaApi::kSuccess) {
    return nullptr;
  }
  // Other streams may use it from now on.
  return context_.api.Settle(memory_stream_) == CudaApi::kSuccess ? memory : nullptr;
}

void CudaDevice::FreeValues(std::byte* memory) {
  const Using gpu(context_.api);
  // An error is the device's: whatever comes next finds it.
  static_cast<void>(context_.api.Free(memory, memory_stream_));
}

std::byte* CudaDevice::AllocateCodes(int64_t bytes) {
  const int64_t size = (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  std::byte* memory = nullptr;
  if (auto block = reserve_ == nullptr ? nullptr : reserve_->Take(size)) {
    memory = block->memory();
    reserved_.emplace(memory, std::move(block));
    return memory;
  }
  const auto kept = free_codes_.lower_bound(size);
  if (kept != free_codes_.end() && kept->first <= 2 * size) {
    memory = kept->second;
    codes_.emplace(memory, kept->first);
    free_codes_.erase(kept);
    return memory;
  }
  const Using gpu(context_.api);
  if (context_.api.AllocatePinned(&memory, size) != CudaApi::kSuccess) return nullptr;
  codes_.emplace(memory, size);
  return memory;
}

void CudaDevice::FreeCodes(std::byte* memory) {
  if (reserved_.erase(memory) > 0) return;
  const auto taken = codes_.find(memory);
  free_codes_.emplace(taken->second, memory);
  codes_.erase(taken);
}

std::byte* CudaDevice::AllocateShared(int64_t bytes) {
  const Using gpu(context_.api);
  return context_.shared.Allocate(bytes);
}

Result<std::string> CudaDevice::Export(const std::byte* memory) {
  const Using gpu(context_.api);
  return context_.shared.Export(memory);
}

Result<Device::Imported> CudaDevice::Import(std::string_view handle) {
  const Using gpu(context_.api);
  return context_.shared.Import(handle);
}

bool CudaDevice::Bind() { return context_.api.Begin() == CudaApi::kSuccess; }

void CudaDevice::Unbind() { context_.api.End(); }

// ---- Calls -------------------------------------------------------------------------------

Status CudaDevice::CheckHolds(void* stream) {
  const Using gpu(context_.api);
  return trial_.Check(static_cast<CUstream_st*>(stream));
}

Status CudaDevice::Reserve(int64_t bytes) {
  if (reserve_ != nullptr) return Status::Ok();
  const Using gpu(context_.api);
  std::byte *pinned = nullptr, *values = nullptr;
  int error = context_.api.AllocatePinned(&pinned, bytes);
  if (error != CudaApi::kSuccess) {
    return OutOfMemory(context_.api, context_.name, "pinned memory to set aside", bytes, error);
  }
  reserve_ = std::make_unique<SharedArena>(this, pinned, bytes);
  // The pool keeps what it once had.
  error = context_.api.Allocate(&values, bytes, memory_stream_);
  if (error == CudaApi::kSuccess) error = context_.api.Free(values, memory_stream_);
  if (error == CudaApi::kSuccess) error = context_.api.Settle(memory_stream_);
  if (error != CudaApi::kSuccess) {
    return OutOfMemory(context_.api, context_.name, "memory to set aside", bytes, error);
  }
  for (size_t i = 0; i < kReservedEvents; ++i) {
    CUevent_st* event = nullptr;
    if (Status status = context_.Check(context_.api.MakeEvent(&event), "making an event"); !status.ok()) {
      return status;
    }
    free_events_.push_back(event);
  }
  return gates_.Reserve(kReservedEvents);
}

Result<Device::CallId> CudaDevice::Enter(void* stream, bool holds) {
  if (!broken_.ok()) return broken_;
  const Using gpu(context_.api);
  return gates_.Enter(static_cast<CUstream_st*>(stream), holds);
}

Result<bool> CudaDevice::IsReady(CallId call) {
  if (!broken_.ok()) return broken_;
  const Using gpu(context_.api);
  const int error = gates_.Query(call);
  if (error == CudaApi::kNotReady) return false;
  if (error == CudaApi::kSuccess) return true;
  Break(error);
  return broken_;
}

void CudaDevice::Leave(CallId call) { gates_.Leave(call); }

// ---- Computations ------------------------------------------------------------------------

Result<CUevent_st*> CudaDevice::TakeEvent() {
  if (!free_events_.empty()) {
    CUevent_st* const event = free_events_.back();
    free_events_.pop_back();
    return event;
  }
  CUevent_st* event = nullptr;
  if (Status status = context_.Check(context_.api.MakeEvent(&event), "making an event");
      !status.ok()) {
    return status;
  }
  return event;
}

void CudaDevice::Launch(Completion* done, const Computation& computation, Computation next) {
  Stream& on = *streams_[next_stream_++ % streams_.size()];
  const Using gpu(context_.api);
  UnderWay& one = *on.under_way.emplace_back(std::make_unique<UnderWay>());
  one.status = broken_;
  one.next = std::move(next);
  one.done = done;
  // An event first: without one nobody would hear of the end.
  if (one.status.ok()) {
    Result<CUevent_st*> event = TakeEvent();
    if (event.ok()) one.event = *event;
    else one.status = event.status();
  }
  if (one.event == nullptr) return;
  one.work = std::make_unique<Work>(&context_, on.stream, &on.scratch);
  one.status = computation(*one.work);
  one.error = context_.api.Record(one.event, on.stream);
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
  Launch(done, [=](Work& work) { return work.CheckReferences(runs); },
         [all = std::vector(runs.begin(), runs.end())](Work& work) { return work.Decode(all); });
}

void CudaDevice::Merge(CallId, ReduceOp op, int64_t divisor, std::span<const MergeRun> runs,
                       Completion* done) {
  Launch(done, [=](Work& work) { return work.Merge(op, divisor, runs); });
}

void CudaDevice::Residual(CallId, int64_t times, std::span<const ResidualRun> runs, Completion* done) {
  Launch(done, [=](Work& work) { return work.Residual(times, runs); });
}

void CudaDevice::Fill(CallId, std::span<const FillRun> runs, Completion* done) {
  Launch(done, [=](Work& work) { return work.Fill(runs); });
}

void CudaDevice::Break(int error) {
  if (!broken_.ok()) return;
  broken_ = {Code::kInternal,
             context_.name + " has failed, and all that was under way on it with it: " +
                 context_.api.Describe(error) +
                 ". Nothing can be computed there until the process is started anew"};
}

bool CudaDevice::Poll() {
  Over over;
  {
    const Using gpu(context_.api);
    for (const auto& stream : streams_) PollStream(*stream, &over);
  }
  // They may start what comes next.
  for (auto& [done, status] : over) done->Done(std::move(status));
  return !over.empty();
}

void CudaDevice::PollStream(Stream& stream, Over* over) {
  while (!stream.under_way.empty()) {
    UnderWay& oldest = *stream.under_way.front();
    if (oldest.error != CudaApi::kSuccess) Break(oldest.error);
    if (broken_.ok() && oldest.event != nullptr) {
      const int error = context_.api.Query(oldest.event);
      if (error == CudaApi::kNotReady) return;
      if (error != CudaApi::kSuccess) Break(error);
    }
    const std::unique_ptr<UnderWay> ended = std::move(stream.under_way.front());
    stream.under_way.pop_front();
    End(*ended, over);
  }
}

void CudaDevice::End(UnderWay& ended, Over* over) {
  if (ended.event != nullptr) free_events_.push_back(ended.event);
  Status status = !broken_.ok() ? broken_ : ended.status;
  if (status.ok()) status = ended.work->Outcome();
  if (status.ok() && ended.next) return Launch(ended.done, std::move(ended.next));
  over->emplace_back(ended.done, std::move(status));
}

}  // namespace jaxccomp::cuda
