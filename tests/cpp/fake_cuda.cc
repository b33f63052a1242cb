#include "fake_cuda.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "check.h"
#include "codec/nvcomp/library.h"
#include "fake_device.h"

namespace jaxccomp::testing {
namespace {

// How often the thread has begun to use a GPU.
thread_local int t_uses = 0;
thread_local FakeCuda* t_current = nullptr;

}  // namespace

FakeCuda::FakeCuda(FakeMemory* memory, Faults* faults, uint32_t seed, int longest_delay_us,
                   FakeContext* context)
    : memory_(*memory),
      faults_(*faults),
      seed_(seed),
      longest_delay_us_(longest_delay_us),
      context_(context) {
  streams_.reserve(16);   // others are in use when one is made
  static std::atomic<uint64_t> processes{1};
  process_ = ++processes;
}

FakeCuda::~FakeCuda() {
  streams_.clear();
  if (!abandoned_) CHECK(values_.empty());
}

void FakeCuda::Hold(bool held) {
  std::lock_guard<std::mutex> lock(mutex_);
  held_ = held;
  released_.notify_all();
}

void FakeCuda::Abandon() {
  abandoned_ = true;
  Hold(false);
}

std::string FakeCuda::Describe(int error) const {
  switch (error) {
    case kOutOfMemory: return "injected: out of memory (2)";
    case kIllegalAddress: return "injected: an illegal memory access was encountered (700)";
    default: return "injected: error " + std::to_string(error);
  }
}

int FakeCuda::Begin() {
  if (context_ != nullptr) context_->Lock().unlock();
  ++t_uses;
  t_current = this;
  return kSuccess;
}

void FakeCuda::End() { --t_uses; }

bool FakeCuda::IsUsed() { return t_uses > 0; }

bool FakeCuda::IsOwn(CUstream_st* stream) const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [&](const auto& own) { return own.get() == StreamOf(stream); });
}

int FakeCuda::Enqueue(CUstream_st* stream, std::function<void()> work) {
  CHECK(t_uses > 0);
  CHECK(IsOwn(stream));
  if (broken_) return kIllegalAddress;
  StreamOf(stream)->Push([this, work = std::move(work)] {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      released_.wait(lock, [&] { return !held_; });
    }
    if (!broken_) work();
  });
  return kSuccess;
}

FakeCuda& FakeCuda::Current() {
  CHECK(t_uses > 0);
  return *t_current;
}

Status FakeCuda::PrepareNvcomp(nvcomp::Format format, DType dtype) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [word, value] : waits_) {
    CHECK(static_cast<int32_t>(std::atomic_ref<uint32_t>(*word).load() - value) >= 0);
  }
  waits_.clear();
  ++preparations_;
  if (Faults::Due(faults_.preparation)) {
    return {Code::kUnavailable, "injected: nvCOMP is missing" + std::string(nvcomp::kRemedy)};
  }
  nvcomp_.emplace(format, dtype);
  return Status::Ok();
}

bool FakeCuda::HasPreparedNvcomp(nvcomp::Format format, DType dtype) {
  std::lock_guard<std::mutex> lock(mutex_);
  return nvcomp_.contains({format, dtype});
}

Status FakeCuda::Start(CUstream_st* stream, std::function<void()> work) {
  ++computations_;
  if (Faults::Due(faults_.computation)) {
    return {Code::kUnavailable, "injected: a kernel did not start"};
  }
  const int error = Enqueue(stream, std::move(work));
  return error == kSuccess ? Status::Ok() : Status(Code::kUnavailable, Describe(error));
}

// ---- Memory ------------------------------------------------------------------------------

int FakeCuda::Allocate(std::byte** memory, int64_t bytes, CUstream_st* stream) {
  CHECK(t_uses > 0);
  if (broken_) return kIllegalAddress;
  if (Faults::Due(faults_.values_allocation)) return kOutOfMemory;
  bool grows = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    in_use_bytes_ += bytes;
    grows = in_use_bytes_ > pool_bytes_;
    pool_bytes_ = std::max(pool_bytes_, in_use_bytes_);
  }
  if (grows) WaitForStreams();
  *memory = memory_.Take(bytes);
  if (*memory == nullptr) return kOutOfMemory;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    in_use_[*memory] = bytes;
  }
  if (StreamOf(stream) == streams_[0].get()) values_.insert(*memory);
  return kSuccess;
}

int FakeCuda::Free(std::byte* memory, CUstream_st* stream) {
  CHECK(t_uses > 0);
  if (StreamOf(stream) == streams_[0].get()) CHECK_EQ(values_.erase(memory), 1u);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    in_use_bytes_ -= in_use_.extract(memory).mapped();
  }
  StreamOf(stream)->Push([this, memory] { memory_.GiveBack(memory); });
  return Now();
}

int FakeCuda::FreeBytes(int64_t* free_bytes, int64_t* all_bytes) {
  *free_bytes = 1000;
  *all_bytes = 2000;
  return Now();
}

void FakeCuda::WaitForStreams() {
  if (context_ == nullptr || !context_->limits().allocations_wait) return;
  const auto stands = [&] {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::any_of(waits_.begin(), waits_.end(), [](const auto& wait) {
      return static_cast<int32_t>(std::atomic_ref<uint32_t>(*wait.first).load() - wait.second) < 0;
    });
  };
  while (!abandoned_ && stands()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

int FakeCuda::AllocatePinned(std::byte** memory, int64_t bytes) {
  CHECK(t_uses > 0);
  WaitForStreams();
  if (broken_) return kIllegalAddress;
  if (Faults::Due(faults_.codes_allocation)) return kOutOfMemory;
  *memory = memory_.TakePinned(bytes);
  return kSuccess;
}

int FakeCuda::AllocateShared(std::byte** memory, int64_t bytes) {
  CHECK(t_uses > 0);
  if (Faults::Due(faults_.shared_allocation)) return kOutOfMemory;
  *memory = memory_.TakeShared(bytes);
  return *memory == nullptr ? kOutOfMemory : Now();
}

int FakeCuda::Export(IpcKey* key, std::byte* memory) {
  CHECK(t_uses > 0);
  key->fill(std::byte{0x5e});
  std::memcpy(key->data(), &memory, sizeof(memory));
  return Now();
}

int FakeCuda::Import(std::byte** memory, int64_t* bytes, const IpcKey& key) {
  CHECK(t_uses > 0);
  std::memcpy(memory, key.data(), sizeof(*memory));
  *bytes = FakeMemory::AnySharedBytes(*memory);
  if (Faults::Due(faults_.import) || !memory_.Import(*memory, *bytes)) return 1;
  return Now();
}

int FakeCuda::ReachPeer(const Uuid&) {
  memory_.ImportAll();
  return Now();
}

cuda::CudaApi::Uuid FakeCuda::OwnUuid() const {
  Uuid uuid = {};
  const FakeCuda* const self = this;
  std::memcpy(uuid.data(), &self, sizeof(self));
  return uuid;
}

// ---- Streams and events ------------------------------------------------------------------

int FakeCuda::MakeStream(CUstream_st** stream) {
  CHECK(t_uses > 0);
  const auto seed = seed_ * 31 + static_cast<uint32_t>(streams_.size());
  streams_.push_back(context_ != nullptr
                         ? std::make_unique<OwnStream>(this, context_)
                         : std::make_unique<OwnStream>(this, seed, longest_delay_us_));
  FakeStream* const made = streams_.back().get();
  *stream = reinterpret_cast<CUstream_st*>(made);
  return kSuccess;
}

int FakeCuda::MakeEvent(CUevent_st** event) {
  CHECK(t_uses > 0);
  std::lock_guard<std::mutex> lock(mutex_);   // callers' threads make some, too
  events_.push_back(std::make_unique<Event>());
  *event = reinterpret_cast<CUevent_st*>(events_.back().get());
  return Now();
}

int FakeCuda::Record(CUevent_st* event, CUstream_st* stream) {
  CHECK(t_uses > 0);
  auto* const recorded = reinterpret_cast<Event*>(event);
  const int64_t number = ++recorded->recorded;
  const auto pass = [recorded, number] {
    recorded->passed = std::max(recorded->passed.load(), number);
  };
  recorded->of_caller = !IsOwn(stream);
  if (!recorded->of_caller) return Enqueue(stream, pass);
  StreamOf(stream)->Push(pass);
  ++marks_;
  return Now();
}

int FakeCuda::Query(CUevent_st* event) {
  CHECK(t_uses > 0);
  const auto* const asked = reinterpret_cast<const Event*>(event);
  if (broken_) return kIllegalAddress;
  if (asked->passed < asked->recorded) return kNotReady;
  if (asked->of_caller && Faults::Due(faults_.ready)) broken_ = true;
  return Now();
}

int FakeCuda::WaitAtLeast(CUstream_st* stream, uint32_t* word, uint32_t value) {
  CHECK(t_uses > 0);
  if (Faults::Due(faults_.enter)) return 801;
  ++held_streams_;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waits_.emplace_back(word, value);
  }
  StreamOf(stream)->Push([this, word, value] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (static_cast<int32_t>(std::atomic_ref<uint32_t>(*word).load() - value) < 0) {
      if (abandoned_) return;
      if (std::chrono::steady_clock::now() > until) {
        std::fprintf(stderr, "a call was never left\n");
        std::abort();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  return Now();
}

int FakeCuda::Settle(CUstream_st* stream) {
  CHECK(StreamOf(stream) == streams_[0].get());
  StreamOf(stream)->Finish();
  return Now();
}

// ---- Computations ------------------------------------------------------------------------

int FakeCuda::Copy(void* to, const void* from, int64_t bytes, CUstream_st* stream) {
  ++computations_;
  if (Faults::Due(faults_.computation)) return 1;
  return Enqueue(stream, [this, to, from, bytes] {
    std::memmove(memory_.Reach(to), memory_.Reach(from), static_cast<size_t>(bytes));
  });
}

int FakeCuda::SetZero(void* to, int64_t bytes, CUstream_st* stream) {
  ++computations_;
  if (Faults::Due(faults_.computation)) return 1;
  return Enqueue(stream, [this, to, bytes] {
    std::memset(memory_.Shadow(to), 0, static_cast<size_t>(bytes));
  });
}

// ---- Devices -----------------------------------------------------------------------------

FakeCudaDevice::FakeCudaDevice(uint32_t seed, int streams, int longest_delay_us,
                               const cuda::KernelTable& kernels, FakeContext* context)
    : api_(&memory, &faults, seed, longest_delay_us, context) {
  auto made = cuda::CudaDevice::Make(&api_, &kernels, "cuda:0", streams);
  if (CHECK_OK(made)) device_ = std::move(*made);
}

bool HasCurrent(DeviceKind kind) {
  return kind == DeviceKind::kFake ? FakeDevice::IsBound() : FakeCuda::IsUsed();
}

std::shared_ptr<TestedDevice> MakeDevice(DeviceKind kind, uint32_t seed, int streams,
                                         int longest_delay_us) {
  if (kind == DeviceKind::kCuda) {
    return std::make_shared<FakeCudaDevice>(seed, streams, longest_delay_us);
  }
  return std::make_shared<FakeDevice>(seed, streams, longest_delay_us);
}

}  // namespace jaxccomp::testing
