// A schedule prepared for the simulation: the cost, memory and dependencies of each task.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collective/memory_limits.h"
#include "collective/schedule.h"
#include "planner/cluster.h"

namespace jaxccomp {

struct PricedTask {
  TaskKind kind;
  int32_t lane = 0;
  int32_t peer = -1;
  uint32_t tag = 0;
  int32_t dep_count = 0;
  int32_t first_dependent = 0;   // index in RankTasks::dependents; the range ends where the next task's begins
  int32_t first_block = 0;       // index in RankTasks::blocks, likewise
  int64_t message_bytes = 0;     // of a transfer, encoded
  double seconds = 0;            // of a computation, on one core
};

struct RankTasks {
  std::vector<PricedTask> tasks; // and a sentinel, which ends the last task's ranges
  std::vector<TaskId> dependents;
  std::vector<int32_t> blocks;   // temporary memory that tasks touch
  std::vector<int64_t> block_bytes;
  std::vector<int32_t> block_uses;
  std::vector<int32_t> lane_tasks;
  int32_t lane_series = 1;
  int64_t early_bytes = 0;       // memory_limits.h

  int64_t count() const { return static_cast<int64_t>(tasks.size()) - 1; }
  std::span<const TaskId> DependentsOf(TaskId task) const {
    return {dependents.data() + tasks[task].first_dependent,
            static_cast<size_t>(tasks[task + 1].first_dependent - tasks[task].first_dependent)};
  }
  std::span<const int32_t> BlocksOf(TaskId task) const {
    return {blocks.data() + tasks[task].first_block,
            static_cast<size_t>(tasks[task + 1].first_block - tasks[task].first_block)};
  }
};

RankTasks PriceTasks(const Schedule& schedule, const Cluster& cluster, int64_t chunk_bytes);

}  // namespace jaxccomp
