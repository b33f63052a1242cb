#include "collective/carry.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace jaxccomp {
namespace {

// A range of Input that every task reads whole or not at all.
struct Piece {
  Piece(int32_t which, int64_t begin_bytes, int64_t end_bytes)
      : block(which), begin(begin_bytes), end(end_bytes) {}
  std::pair<int32_t, int64_t> place() const { return {block, begin}; }

  int32_t block;
  int64_t begin, end;
  TaskId sum = kNoTask;          // what adds it up
  std::vector<TaskId> readers;   // of the sum
  int32_t last_lane = 0;         // of these
  bool lost = false;             // whether a compression error has been written over it
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
    for (const Piece& piece : pieces_) {
      if (piece.sum == kNoTask || piece.lost) continue;
      Add({.kind = TaskKind::kResidual, .lane = piece.last_lane, .dst = At(Space::kResidual, piece)}, {},
          piece.readers);
    }
    return std::move(to_);
  }

 private:
  static Slot At(Space space, const Piece& piece) { return {space, piece.block, piece.begin, piece.end}; }

  void Cut() {
    std::set<std::pair<int32_t, int64_t>> cuts;   // by block
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
      pieces_.emplace_back(begin->first, begin->second, end->second);
    }
  }

  std::span<Piece> PiecesOf(const Slot& slot) {
    const auto first = std::ranges::lower_bound(pieces_, std::pair(slot.block, slot.begin), {}, &Piece::place);
    const auto last = std::ranges::lower_bound(pieces_, std::pair(slot.block, slot.end), {}, &Piece::place);
    return {first, last};
  }

  void Take(const Task& task) {
    std::vector<Slot> sources;
    std::vector<TaskId> deps;
    for (TaskId dep : from_.DepsOf(task)) deps.push_back(dep == kNoTask ? kNoTask : taken_[dep]);
    std::vector<Piece*> read;
    for (Slot slot : from_.SourcesOf(task)) {
      if (slot.space == Space::kInput) {
        for (Piece& piece : PiecesOf(slot)) read.push_back(&piece);
        slot.space = Space::kResidual;
      }
      sources.push_back(slot);
    }
    for (Piece* piece : read) {
      if (piece->sum == kNoTask) piece->sum = AddSum(*piece, task.lane);
      deps.push_back(piece->sum);
    }
    if (task.kind == TaskKind::kResidual) {
      for (Piece& piece : PiecesOf(task.dst)) {
        deps.insert(deps.end(), piece.readers.begin(), piece.readers.end());
        piece.lost = true;
      }
    }
    const TaskId id = Add(task, sources, std::move(deps));
    taken_.push_back(id);
    for (Piece* piece : read) {
      piece->readers.push_back(id);
      piece->last_lane = std::max(piece->last_lane, task.lane);
    }
  }

  TaskId AddSum(const Piece& piece, int32_t lane) {
    const Slot sources[] = {At(Space::kInput, piece), At(Space::kCarried, piece)};
    return Add({.kind = TaskKind::kMerge, .lane = lane, .dst = At(Space::kResidual, piece)}, sources, {});
  }

  TaskId Add(Task task, std::span<const Slot> sources, std::vector<TaskId> deps) {
    std::ranges::sort(deps);
    deps.erase(std::ranges::unique(deps).begin(), deps.end());
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
  std::vector<Piece> pieces_;   // in order
  std::vector<TaskId> taken_;   // by task of from_: its number in to_
};

}  // namespace

Schedule CarryResiduals(const Schedule& schedule) { return Carrier(schedule).Run(); }

}  // namespace jaxccomp
