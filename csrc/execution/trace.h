// A trace of tasks, with the times at which each task began and ended, for timelines.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "collective/algorithm.h"
#include "collective/schedule.h"
#include "matching/call_log.h"
#include "transport/transport.h"

namespace jaxccomp {

struct TraceEvent {
  int64_t begin_ns = 0;     // since the recording started
  int64_t end_ns = 0;
  int64_t operation = 0;    // counted from the start of the recording
  int64_t bytes = 0;        // of the values, not encoded
  int64_t payload_bytes = 0;   // of transfers: encoded
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
  int64_t payload_bytes = 0;
};

// A finished trace.
struct Recording {
  std::vector<TraceEvent> events;
  std::vector<std::shared_ptr<const CallRow>> calls;   // by TraceEvent::operation
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
    recorded_ = {};
    begun_ = Clock::now();
    recording_ = true;
    return begun_;
  }
  Recording Stop() {
    recording_ = false;
    return std::exchange(recorded_, {});
  }
  // Whether tasks of further operations are recorded.
  bool HasRoom() const {
    return recording_ && recorded_.events.size() < kMaxEvents && recorded_.calls.size() < kMaxEvents;
  }
  // Adds an operation, and returns its number.
  int64_t Add(std::shared_ptr<const CallRow> call) {
    recorded_.calls.push_back(std::move(call));
    return static_cast<int64_t>(recorded_.calls.size()) - 1;
  }
  void Add(TraceEvent event, const TraceStart& start) {
    // Tasks that began before the recording are left out.
    if (recorded_.events.size() >= kMaxEvents || start.begin < begun_) return;
    event.message = start.message;
    event.payload_bytes = start.payload_bytes;
    event.begin_ns = std::chrono::nanoseconds(start.begin - begun_).count();
    event.end_ns = std::chrono::nanoseconds(Clock::now() - begun_).count();
    recorded_.events.push_back(event);
  }

 private:
  static constexpr size_t kMaxEvents = size_t{1} << 20;

  bool recording_ = false;
  Clock::time_point begun_;
  Recording recorded_;
};

}  // namespace jaxccomp
