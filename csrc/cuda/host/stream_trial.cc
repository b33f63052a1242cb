#include "cuda/host/stream_trial.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <string>
#include <thread>

namespace jaxccomp::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPause = std::chrono::microseconds(50);

// Stores to the word at the deadline, or before: also while the thread that tries is in a call of CUDA.
class Release {
 public:
  Release(uint32_t* word, uint32_t value, Clock::duration after)
      : word_(word), value_(value), thread_([this, after] {
          std::unique_lock lock(mutex_);
          wake_.wait_for(lock, after, [this] { return now_; });
          std::atomic_ref<uint32_t>(*word_).store(value_, std::memory_order_release);
        }) {}
  ~Release() {
    {
      std::lock_guard lock(mutex_);
      now_ = true;
      wake_.notify_all();
    }
    thread_.join();
  }
  Release(const Release&) = delete;
  Release& operator=(const Release&) = delete;

 private:
  uint32_t* const word_;
  const uint32_t value_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool now_ = false;
  std::thread thread_;
};

}  // namespace

Status StreamTrial::Prepare(std::span<CUstream_st* const> own) {
  CudaApi& api = context_.api;
  own_.assign(own.begin(), own.end());
  events_.resize(own_.size());
  const int64_t bytes = std::ssize(own_) * kBytes;
  int error = api.MakeEvent(&come_);
  if (error == CudaApi::kSuccess) error = api.MakeEvent(&passed_);
  for (CUevent_st*& event : events_) {
    if (error == CudaApi::kSuccess) error = api.MakeEvent(&event);
  }
  if (error == CudaApi::kSuccess) error = api.AllocatePinned(&here_, bytes);
  if (error == CudaApi::kSuccess) error = api.Allocate(&there_, bytes, own_.back());
  if (error == CudaApi::kSuccess) {
    word_ = context_.words.Take(1, &error);
    if (word_ != nullptr) *word_ = 0;
  }
  return context_.Check(error, "preparing to try streams");
}

Status StreamTrial::Check(CUstream_st* stream) {
  std::lock_guard lock(mutex_);
  const auto known = known_.find(stream);
  if (known != known_.end()) return known->second;
  return known_.emplace(stream, Try(stream)).first->second;
}

Status StreamTrial::Start(size_t i) {
  CudaApi& api = context_.api;
  CUstream_st* const on = own_[i];
  std::byte* const here = here_ + static_cast<int64_t>(i) * kBytes;
  std::byte* const there = there_ + static_cast<int64_t>(i) * kBytes;
  int error = api.SetZero(there, kBytes, on);
  if (error == CudaApi::kSuccess) error = api.Copy(here, there, kBytes, on);
  if (error == CudaApi::kSuccess) error = api.Copy(there, here, kBytes, on);
  if (error == CudaApi::kSuccess) error = api.Record(events_[i], on);
  return context_.Check(error, "trying a stream");
}

Result<bool> StreamTrial::IsOver(CUevent_st* event, Clock::time_point until) {
  while (true) {
    const int error = context_.api.Query(event);
    if (error == CudaApi::kSuccess) return true;
    if (error != CudaApi::kNotReady) return context_.Check(error, "trying a stream");
    if (Clock::now() > until) return false;
    std::this_thread::sleep_for(kPause);
  }
}

Status StreamTrial::Try(CUstream_st* stream) {
  constexpr auto kNever = Clock::time_point::max();
  CudaApi& api = context_.api;
  // What the stream has to do before takes its time, which is none of the trial's.
  Status status = context_.Check(api.Record(come_, stream), "trying a stream");
  if (!status.ok()) return status;
  if (Result<bool> come = IsOver(come_, kNever); !come.ok()) return come.status();
  bool ended = true;
  status = context_.Check(api.WaitAtLeast(stream, word_, ++value_), "trying a stream");
  {
    const auto until = Clock::now() + longest_;
    const Release release(word_, value_, longest_);
    if (status.ok()) status = context_.Check(api.Record(passed_, stream), "trying a stream");
    for (size_t i = 0; i < own_.size() && status.ok(); ++i) status = Start(i);
    for (size_t i = 0; i < own_.size() && status.ok() && ended; ++i) {
      Result<bool> over = IsOver(events_[i], until);
      if (!over.ok()) status = over.status();
      else ended = *over;
    }
    // One that came only when the stream went on does not count.
    ended &= Clock::now() < until;
  }
  if (!status.ok()) return status;
  if (Result<bool> passed = IsOver(passed_, kNever); !passed.ok()) return passed.status();
  if (ended) return Status::Ok();
  return {Code::kFailedPrecondition,
          context_.name + ": while a stream of the program waits, the engine's stand still as well: they "
                          "share a hardware queue. CUDA_DEVICE_MAX_CONNECTIONS=32, before CUDA starts, gives "
                          "them more"};
}

}  // namespace jaxccomp::cuda
