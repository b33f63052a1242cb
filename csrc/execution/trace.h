// A trace of tasks, with the times at which each task began and ended, for timelines.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "collective/algorithm.h"
#include "collective/schedule.h"
#include "transport/transport.h"

namespace jaxccomp {

struct TraceEvent {
  int64_t begin_ns = 0;     // since the recording started
  int64_t end_ns = 0;
  int64_t operation = 0;    // counted from the start of the recording
  int64_t bytes = 0;        // of the values, not encoded
  uint64_t message = 0;     // of transfers: MessageNumber, the same at sender and receiver
  int32_t lane = 0;
  int32_t peer = -1;        // of transfers
  TaskKind kind = TaskKind::kCopy;
  Collective collective = Collective::kBarrier;
};

// A task that has begun during a trace.
struct TraceStart {
  std::chrono::steady_clock::time_point begin;
  uint64_t message = 0;
};

// The number of a message: a hash, the same on all ranks, and unique in a recording with high probability.
uint64_t MessageNumber(const Header& header);

// Used under the engine's lock.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  bool recording() const { return recording_; }
  // Starts recording, and returns the time.
  Clock::time_point Start() {
    events_.clear();
    operations_ = 0;
    begun_ = Clock::now();
    recording_ = true;
    return begun_;
  }
  // Stops recording, and returns the events.
  std::vector<TraceEvent> Stop() {
    recording_ = false;
    return std::exchange(events_, {});
  }
  int64_t NextOperation() { return operations_++; }
  void Add(TraceEvent event, const TraceStart& start) {
    // Tasks that began before the recording are left out.
    if (events_.size() >= kMaxEvents || start.begin < begun_) return;
    event.message = start.message;
    event.begin_ns = std::chrono::nanoseconds(start.begin - begun_).count();
    event.end_ns = std::chrono::nanoseconds(Clock::now() - begun_).count();
    events_.push_back(event);
  }

 private:
  static constexpr size_t kMaxEvents = size_t{1} << 20;

  bool recording_ = false;
  int64_t operations_ = 0;
  Clock::time_point begun_;
  std::vector<TraceEvent> events_;
};

}  // namespace jaxccomp
