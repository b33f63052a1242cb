#include "execution/memory_budget.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace jaxccomp {

void MemoryBudget::Begin(const Plan& plan) {
  lane_open_ = plan.lane_tasks;
  first_lane_ = {0, 1};
  lane_series_ = plan.lane_series;
  early_bytes_ = plan.limits.early_bytes;
  held_bytes_ = peak_bytes_ = 0;
}

bool MemoryBudget::MayHold(int32_t lane, int64_t bytes) const {
  return bytes == 0 || lane <= first_lane_[lane % lane_series_] ||
         held_bytes_ + bytes <= early_bytes_;
}

std::vector<TaskId> MemoryBudget::TaskDone(const Plan& plan, int32_t lane) {
  --lane_open_[lane];
  int32_t& first_lane = first_lane_[lane % lane_series_];
  while (first_lane < std::ssize(lane_open_) && lane_open_[first_lane] == 0) {
    first_lane += lane_series_;
  }
  int64_t promised_bytes = 0;
  std::vector<TaskId> may_start;
  std::vector<Parked> still_parked;
  while (!parked_.empty()) {
    const Parked parked = parked_.top();
    if (MayHold(plan.tasks[parked.task].lane, promised_bytes + parked.bytes)) {
      promised_bytes += parked.bytes;
      may_start.push_back(parked.task);
    } else if (lane_series_ == 1) {
      break;   // the remaining tasks are of this lane or of higher lanes
    } else {
      still_parked.push_back(parked);
    }
    parked_.pop();
  }
  for (const Parked& parked : still_parked) parked_.push(parked);
  return may_start;
}

void MemoryBudget::RecordPeak(int64_t more_bytes) {
  peak_bytes_ = std::max(peak_bytes_, held_bytes_ + more_bytes);
}

MemoryBudget MemoryBudget::Renewed(MemoryBudget&& old) {
  MemoryBudget fresh;
  old.lane_open_.clear();
  fresh.lane_open_ = std::move(old.lane_open_);
  return fresh;
}

}  // namespace jaxccomp
