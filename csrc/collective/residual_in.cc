#include "collective/residual_in.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace jaxccomp {
namespace {

// A range of Input that every task reads completely or not at all.
struct InputRange {
  InputRange(int32_t which, int64_t begin_bytes, int64_t end_bytes)
      : block(which), begin(begin_bytes), end(end_bytes) {}
  std::pair<int32_t, int64_t> place() const { return {block, begin}; }

  int32_t block;
  int64_t begin, end;
  TaskId sum = kNoTask;          // the task that adds operand and carried residual
  std::vector<TaskId> readers;   // of the sum
  int32_t last_lane = 0;         // of the readers
  bool lost = false;             // a compression error has overwritten the sum
};

class Carrier {
 public:
  explicit Carrier(const Schedule& from) : from_(from) { Cut(); }

  Schedule Run() && {
    to_.scratch = from_.scratch;
    to_.code = from_.code;
    to_.slim_lanes = from_.slim_lanes;
    to_.lane_series = from_.lane_series;
    for (const Task& task : from_.tasks) Take(task);
    // A sum that was never encoded has no compression error: zero it after its last reader.
    for (const InputRange& range : ranges_) {
      if (range.sum == kNoTask || range.lost) continue;
      Add({.kind = TaskKind::kResidual, .lane = range.last_lane, .dst = At(Space::kResidual, range)}, {},
          range.readers);
    }
    return std::move(to_);
  }

 private:
  static Slot At(Space space, const InputRange& range) {
    return {space, range.block, range.begin, range.end};
  }

  void Cut() {
    std::set<std::pair<int32_t, int64_t>> cuts;   // (block, address)
    const auto cut_at = [&](const Slot& slot) {
      cuts.emplace(slot.block, slot.begin);
      cuts.emplace(slot.block, slot.end);
    };
    for (const Task& task : from_.tasks) {
      if (task.kind == TaskKind::kResidual) cut_at(task.dst);
      for (const Slot& slot : from_.SourcesOf(task)) {
        if (slot.space == Space::kInput) cut_at(slot);
      }
    }
    for (auto end = cuts.begin(); end != cuts.end();) {
      const auto begin = end++;
      if (end == cuts.end() || end->first != begin->first) continue;
      ranges_.emplace_back(begin->first, begin->second, end->second);
    }
  }

  std::span<InputRange> RangesOf(const Slot& slot) {
    const auto at = [&](int64_t offset) {
      return std::ranges::lower_bound(ranges_, std::pair(slot.block, offset), {}, &InputRange::place);
    };
    return {at(slot.begin), at(slot.end)};
  }

  void Take(const Task& task) {
    std::vector<Slot> sources;
    std::vector<TaskId> deps;
    for (TaskId dep : from_.DepsOf(task)) deps.push_back(dep == kNoTask ? kNoTask : taken_[dep]);
    std::vector<InputRange*> read;
    for (Slot slot : from_.SourcesOf(task)) {
      if (slot.space == Space::kInput) {
        for (InputRange& range : RangesOf(slot)) read.push_back(&range);
        slot.space = Space::kResidual;
      }
      sources.push_back(slot);
    }
    for (InputRange* range : read) {
      if (range->sum == kNoTask) range->sum = AddSum(*range, task.lane);
      deps.push_back(range->sum);
    }
    if (task.kind == TaskKind::kResidual) {
      // The error overwrites the sum: wait for the sum's readers.
      for (InputRange& range : RangesOf(task.dst)) {
        deps.insert(deps.end(), range.readers.begin(), range.readers.end());
        range.lost = true;
      }
    }
    const TaskId id = Add(task, sources, std::move(deps));
    taken_.push_back(id);
    for (InputRange* range : read) {
      range->readers.push_back(id);
      range->last_lane = std::max(range->last_lane, task.lane);
    }
  }

  TaskId AddSum(const InputRange& range, int32_t lane) {
    const Slot sources[] = {At(Space::kInput, range), At(Space::kResidualIn, range)};
    return Add({.kind = TaskKind::kMerge, .lane = lane, .dst = At(Space::kResidual, range)}, sources, {});
  }

  TaskId Add(Task task, std::span<const Slot> sources, std::vector<TaskId> deps) {
    std::ranges::sort(deps);
    deps.erase(std::unique(deps.begin(), deps.end()), deps.end());   // Clang 14 has no std::ranges::unique
    task.first_source = static_cast<int32_t>(to_.sources.size());
    task.source_count = static_cast<int32_t>(sources.size());
    task.first_dep = static_cast<int32_t>(to_.deps.size());
    task.dep_count = static_cast<int32_t>(deps.size());
    to_.sources.insert(to_.sources.end(), sources.begin(), sources.end());
    to_.deps.insert(to_.deps.end(), deps.begin(), deps.end());
    to_.tasks.push_back(task);
    return static_cast<TaskId>(to_.tasks.size()) - 1;
  }

  const Schedule& from_;
  Schedule to_;
  std::vector<InputRange> ranges_;   // in order
  std::vector<TaskId> taken_;   // by task of from_: its id in to_
};

}  // namespace

Schedule AddResidualsIn(const Schedule& schedule) { return Carrier(schedule).Run(); }

}  // namespace jaxccomp
