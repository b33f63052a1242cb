// Limits the temporary memory of one operation's tasks, and parks tasks that must wait for memory
// (collective/memory_limits.h). Tasks of the lowest lane that is not done may always take memory. Tasks of higher lanes
// may take memory while the operation's total is within MemoryLimits::early_bytes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "collective/schedule.h"
#include "execution/plan.h"

namespace jaxccomp {

class MemoryBudget {
 public:
  void Begin(const Plan& plan);
  // Whether a task of that lane may take that many bytes.
  bool MayHold(int32_t lane, int64_t bytes) const;
  // Parks a task until TaskDone returns it.
  void Park(TaskId task, int64_t bytes) { parked_.push({task, bytes}); }
  // A task of that lane is done. Removes and returns the parked tasks that may now take their memory.
  std::vector<TaskId> TaskDone(const Plan& plan, int32_t lane);
  void Hold(int64_t bytes) { held_bytes_ += bytes; }
  void Release(int64_t bytes) { held_bytes_ -= bytes; }
  // `more_bytes`: the transport's memory of unexpected payloads (TransportRouter::EarlyBytes), which the peak includes.
  void RecordPeak(int64_t more_bytes);
  int64_t peak_bytes() const { return peak_bytes_; }
  // Drops all parked tasks.
  void Cancel() { parked_ = {}; }
  // Returns a new budget with the vector capacity of an old one.
  static MemoryBudget Renewed(MemoryBudget&& old);

 private:
  struct Parked {
    TaskId task;
    int64_t bytes;
    bool operator>(const Parked& other) const { return task > other.task; }
  };

  std::priority_queue<Parked, std::vector<Parked>, std::greater<>> parked_;   // lowest task first
  std::vector<int32_t> lane_open_;       // by lane: tasks not yet done
  std::array<int32_t, 2> first_lane_{};  // by lane series: the lowest lane with an open task
  int32_t lane_series_ = 1;              // Schedule::lane_series
  int64_t early_bytes_ = 0;              // limit for tasks of higher lanes
  int64_t held_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace jaxccomp
