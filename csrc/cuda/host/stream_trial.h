// Whether a stream of a caller can be held at all: streams share hardware queues, and what comes behind a
// wait in a queue stands still, be it of another stream. So, before a stream is first held, it is made to
// wait while a kernel and copies go to each stream that operations are computed on. Where they do not end in
// time, the wait was in their way.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "common/status.h"
#include "cuda/host/api.h"
#include "cuda/host/work.h"

namespace jaxccomp::cuda {

class StreamTrial {
 public:
  StreamTrial(DeviceContext* context, std::chrono::milliseconds longest)
      : context_(*context), longest_(longest) {}

  // Takes what trials need, before any stream is held.
  Status Prepare(std::span<CUstream_st* const> own);
  // Ok, or why the stream cannot be held; it is tried once. Waits until the stream has come to the trial.
  Status Check(CUstream_st* stream);

 private:
  static constexpr int64_t kBytes = 4096;   // for each stream

  Status Try(CUstream_st* stream);
  // What is computed on the engine's stream of that number.
  Status Start(size_t i);
  // Until CUDA says that the event is over; false when it is not before `until`.
  Result<bool> IsOver(CUevent_st* event, std::chrono::steady_clock::time_point until);

  DeviceContext& context_;
  const std::chrono::milliseconds longest_;
  std::mutex mutex_;   // of what follows, and of a trial
  std::map<CUstream_st*, Status> known_;
  std::vector<CUstream_st*> own_;
  std::vector<CUevent_st*> events_;   // for each of these
  CUevent_st *come_ = nullptr, *passed_ = nullptr;
  uint32_t* word_ = nullptr;
  uint32_t value_ = 0;
  std::byte *here_ = nullptr, *there_ = nullptr;   // kBytes for each of them
};

}  // namespace jaxccomp::cuda
