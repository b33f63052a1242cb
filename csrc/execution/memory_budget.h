// How much temporary memory the tasks of one operation may hold, and which of them wait for it
// (collective/memory_limits.h). A task of the lowest lane that is not done always may; others as long as
// the operation holds little.
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
  // Whether a task of that lane may take so much.
  bool MayHold(int32_t lane, int64_t bytes) const;
  // The task waits until it may.
  void Park(TaskId task, int64_t bytes) { parked_.push({task, bytes}); }
  // A task of that lane is done. Returns the tasks that need not wait any more.
  std::vector<TaskId> TaskDone(const Plan& plan, int32_t lane);
  void Hold(int64_t bytes) { held_bytes_ += bytes; }
  void Release(int64_t bytes) { held_bytes_ -= bytes; }
  // `more_bytes`: what has come early is counted too, whatever operation it is for.
  void RecordPeak(int64_t more_bytes);
  int64_t peak_bytes() const { return peak_bytes_; }
  // Nothing waits any more.
  void Cancel() { parked_ = {}; }
  // A new one, in the memory of one that is over.
  static MemoryBudget Renewed(MemoryBudget&& old);

 private:
  struct Parked {
    TaskId task;
    int64_t bytes;
    bool operator>(const Parked& other) const { return task > other.task; }
  };

  std::priority_queue<Parked, std::vector<Parked>, std::greater<>> parked_;   // the lowest first
  std::vector<int32_t> lane_open_;       // by lane: tasks not yet done
  std::array<int32_t, 2> first_lane_{};  // of each series of lanes: the lowest that has any
  int32_t lane_series_ = 1;
  int64_t early_bytes_ = 0;              // that tasks of other lanes may hold
  int64_t held_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace jaxccomp
