// The limit of temporary memory that the tasks of an operation may hold, and the tasks that wait for memory
// (collective/memory_limits.h). A task of the lowest lane that is not done may always take memory; other tasks may as
// long as the operation holds little.
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
  // The task waits for memory.
  void Park(TaskId task, int64_t bytes) { parked_.push({task, bytes}); }
  // A task of that lane is done. Returns the tasks that need not wait any more.
  std::vector<TaskId> TaskDone(const Plan& plan, int32_t lane);
  void Hold(int64_t bytes) { held_bytes_ += bytes; }
  void Release(int64_t bytes) { held_bytes_ -= bytes; }
  // `more_bytes`: memory of early messages of all operations, which counts too.
  void RecordPeak(int64_t more_bytes);
  int64_t peak_bytes() const { return peak_bytes_; }
  // Drops all waiting tasks.
  void Cancel() { parked_ = {}; }
  // A new budget that uses the memory of an old one.
  static MemoryBudget Renewed(MemoryBudget&& old);

 private:
  struct Parked {
    TaskId task;
    int64_t bytes;
    bool operator>(const Parked& other) const { return task > other.task; }
  };

  std::priority_queue<Parked, std::vector<Parked>, std::greater<>> parked_;   // lowest task first
  std::vector<int32_t> lane_open_;       // by lane: tasks not yet done
  std::array<int32_t, 2> first_lane_{};  // of each series of lanes: the lowest with an open task
  int32_t lane_series_ = 1;
  int64_t early_bytes_ = 0;              // limit for tasks of other lanes
  int64_t held_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace jaxccomp
