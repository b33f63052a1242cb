#include "collective/check/oracle.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "collective/memory_limits.h"

namespace jaxccomp {
namespace {

class Oracle {
 public:
  Oracle(const World& world, Expressions& expressions, uint32_t seed)
      : world_(world), expressions_(expressions), random_(seed) {}

  Outcome Run() {
    const int ranks = static_cast<int>(world_.schedules.size());
    outcome_.peak_bytes.assign(ranks, 0);
    outcome_.bound_bytes.assign(ranks, 0);
    outcome_.lost.resize(ranks);
    memory_.resize(ranks);
    for (int rank = 0; rank < ranks && outcome_.error.empty(); ++rank) SetUp(rank);
    MatchEnds();
    while (outcome_.error.empty() && !ready_.empty()) {
      const size_t pick = random_() % ready_.size();
      std::swap(ready_[pick], ready_.back());
      const auto [rank, id] = ready_.back();
      ready_.pop_back();
      Execute(rank, id);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const auto& done = memory_[rank].done;
      const auto stuck = std::find(done.begin(), done.end(), 0);
      outcome_.finished.push_back(stuck == done.end());
      if (stuck != done.end()) Fail(rank, stuck - done.begin(), "never runs (deadlock)");
      outcome_.output.push_back(std::move(memory_[rank].spaces[1]));
      if (!world_.adds_residual || !outcome_.error.empty()) continue;
      for (const Block& block : memory_[rank].spaces[4]) {
        for (const Cell& cell : block) {
          if (cell.value != expressions_.Gone()) Fail(rank, 0, "an operand is left in Residual");
        }
      }
    }
    return std::move(outcome_);
  }

 private:
  static constexpr int kSpaces = 6;
  struct Memory {
    std::vector<Block> spaces[kSpaces];
    std::vector<int> waits;                    // by task: dependencies not yet done
    std::vector<std::vector<TaskId>> followers;
    std::vector<char> done;
    std::vector<int> uses_left[kSpaces];       // by Scratch or Code block: remaining tasks that access it
    std::vector<char> live[kSpaces];
    std::vector<int> lane_left;                // by lane: tasks not yet done
    int first_lane = 0;
    std::vector<TaskId> parked;                // tasks that wait for memory
    MemoryLimits limits;
    int64_t held_bytes = 0;
  };

  void Fail(int rank, TaskId id, const std::string& what) {
    if (!outcome_.error.empty()) return;
    outcome_.error =
        "rank " + std::to_string(rank) + ", task " + world_.schedules[rank].ToString(id) + ": " + what;
  }

  Block MakeBlock(int64_t begin, int64_t end) const {
    return Block(static_cast<size_t>(world_.CellsBefore(end) - world_.CellsBefore(begin)));
  }

  void SetUp(int rank) {
    const Schedule& schedule = world_.schedules[rank];
    Memory& memory = memory_[rank];
    for (size_t b = 0; b < world_.input_bytes[rank].size(); ++b) {
      Block block = MakeBlock(0, world_.input_bytes[rank][b]);
      for (size_t i = 0; i < block.size(); ++i) {
        block[i] = {static_cast<int32_t>(b), static_cast<int32_t>(i),
                    world_.adds_residual ? expressions_.Unadded(rank) : expressions_.Operand(rank)};
      }
      memory.spaces[0].push_back(std::move(block));
    }
    for (int64_t bytes : world_.output_bytes[rank]) memory.spaces[1].push_back(MakeBlock(0, bytes));
    if (world_.shared_memory) memory.spaces[1][0] = memory.spaces[0][0];
    for (const Slot& slot : schedule.scratch) memory.spaces[2].push_back(MakeBlock(slot.begin, slot.end));
    for (const Slot& slot : schedule.code) memory.spaces[3].push_back(MakeBlock(slot.begin, slot.end));
    for (int64_t bytes : world_.input_bytes[rank]) {
      memory.spaces[4].push_back(MakeBlock(0, bytes));
      outcome_.lost[rank].emplace_back(memory.spaces[4].back().size());
    }
    if (world_.adds_residual) {
      memory.spaces[5] = memory.spaces[0];
      for (Block& block : memory.spaces[5]) {
        for (Cell& cell : block) cell.value = expressions_.Carried(rank);
      }
    }
    for (const auto& [space, slots] : {std::pair{Space::kScratch, &schedule.scratch},
                                       std::pair{Space::kCode, &schedule.code}}) {
      const auto s = static_cast<size_t>(space);
      memory.uses_left[s].assign(slots->size(), 0);
      memory.live[s].assign(slots->size(), 0);
    }
    memory.limits = LimitsOf(schedule, world_.chunk_bytes);
    outcome_.bound_bytes[rank] = memory.limits.bound_bytes;
    memory.lane_left.assign(static_cast<size_t>(schedule.LaneCount()), 0);
    const size_t count = schedule.tasks.size();
    memory.waits.assign(count, 0);
    memory.done.assign(count, 0);
    memory.followers.resize(count);
    std::set<std::tuple<bool, int, uint32_t>> tags;
    for (size_t id = 0; id < count; ++id) {
      const Task& task = schedule.tasks[id];
      for (TaskId dep : schedule.DepsOf(task)) {
        if (dep < 0 || dep >= static_cast<TaskId>(id)) {
          Fail(rank, id, "depends on a later task");
          return;
        }
        if (schedule.tasks[dep].lane > task.lane) Fail(rank, id, "depends on a later lane");
        memory.followers[dep].push_back(static_cast<TaskId>(id));
        ++memory.waits[id];
      }
      ForBlocks(task, schedule, [&](size_t space, int32_t block) {
        ++memory.uses_left[space][block];
      });
      if (task.lane < 0) {
        Fail(rank, id, "has no lane");
        return;
      }
      ++memory.lane_left[task.lane];
      const bool send = task.kind == TaskKind::kSend;
      if (send || task.kind == TaskKind::kRecv) {
        if (!tags.insert({send, task.peer, task.tag}).second) Fail(rank, id, "reuses a tag");
        if (task.peer == rank || task.peer < 0 ||
            task.peer >= static_cast<int>(world_.schedules.size())) {
          Fail(rank, id, "there is no such peer");
        }
      }
    }
    for (size_t id = 0; id < count; ++id) {
      if (memory.waits[id] == 0) MakeReady(rank, id);
    }
  }

  // Checks that each message has a send and a receive, in the same lane.
  void MatchEnds() {
    std::map<std::tuple<int, int, uint32_t>, TaskId> receives;
    const auto each = [&](TaskKind kind, auto&& f) {
      for (size_t rank = 0; rank < world_.schedules.size(); ++rank) {
        const auto& tasks = world_.schedules[rank].tasks;
        for (size_t id = 0; id < tasks.size(); ++id) {
          if (tasks[id].kind == kind) f(static_cast<int>(rank), static_cast<TaskId>(id), tasks[id]);
        }
      }
    };
    if (!outcome_.error.empty()) return;
    each(TaskKind::kRecv, [&](int rank, TaskId id, const Task& task) {
      receives[{task.peer, rank, task.tag}] = id;
    });
    each(TaskKind::kSend, [&](int rank, TaskId id, const Task& task) {
      const auto found = receives.find({rank, task.peer, task.tag});
      if (found == receives.end()) {
        return Fail(rank, id, "rank " + std::to_string(task.peer) +
                                  " has no receive of that tag from this rank");
      }
      const Task& receive = world_.schedules[task.peer].tasks[found->second];
      if (receive.lane != task.lane) {
        Fail(rank, id, "its receive is in lane " + std::to_string(receive.lane) + ", this is lane " +
                           std::to_string(task.lane));
      }
      receives.erase(found);
    });
    for (const auto& [ends, id] : receives) {
      Fail(std::get<1>(ends), id, "rank " + std::to_string(std::get<0>(ends)) +
                                      " has no send of that tag to this rank");
    }
  }

  void MakeReady(int rank, TaskId id) { ready_.push_back({rank, id}); }

  size_t CountLeaves(const std::vector<int>& values) const {
    size_t count = 0;
    for (int value : values) count += expressions_.Leaves(value).size();
    return count;
  }

  // Calls f(space, block) once for each Scratch and Code block that a task accesses.
  template <typename F>
  static void ForBlocks(const Task& task, const Schedule& schedule, F&& f) {
    std::set<std::pair<size_t, int32_t>> blocks;
    auto add = [&](const Slot& slot) {
      if (slot.bytes() == 0) return;
      const bool temporary = slot.space == Space::kScratch || slot.space == Space::kCode;
      if (temporary && IsBlock(schedule, slot)) {
        blocks.insert({static_cast<size_t>(slot.space), slot.block});
      }
    };
    add(task.dst);
    for (const Slot& slot : schedule.SourcesOf(task)) add(slot);
    for (const auto& [space, block] : blocks) f(space, block);
  }

  static bool IsBlock(const Schedule& schedule, const Slot& slot) {
    const auto& blocks = slot.space == Space::kCode ? schedule.code : schedule.scratch;
    return slot.block >= 0 && slot.block < static_cast<int32_t>(blocks.size());
  }

  // Allocates the memory that a task needs; false if it has to wait.
  bool Admit(int rank, TaskId id) {
    Memory& memory = memory_[rank];
    const Schedule& schedule = world_.schedules[rank];
    const Task& task = schedule.tasks[id];
    int64_t needed = 0;
    auto each = [&](auto&& f) {
      ForBlocks(task, schedule, [&](size_t space, int32_t block) {
        if (memory.live[space][block]) return;
        f(memory.live[space][block],
          (space == static_cast<size_t>(Space::kCode) ? schedule.code : schedule.scratch)[block]);
      });
    };
    each([&](char&, const Slot& block) { needed += block.bytes(); });
    if (needed > 0 && task.lane > memory.first_lane &&
        memory.held_bytes + needed > memory.limits.early_bytes) {
      memory.parked.push_back(id);
      return false;
    }
    each([&](char& live, const Slot&) { live = 1; });
    memory.held_bytes += needed;
    outcome_.peak_bytes[rank] = std::max(outcome_.peak_bytes[rank], memory.held_bytes);
    return true;
  }

  // The cells of a slot, or null after an error.
  Cell* Cells(int rank, TaskId id, const Slot& slot) {
    const Schedule& schedule = world_.schedules[rank];
    auto& blocks = memory_[rank].spaces[static_cast<int>(slot.space)];
    if (slot.bytes() == 0) return &nothing_;
    if (slot.block < 0 || slot.block >= static_cast<int>(blocks.size())) {
      Fail(rank, id, "there is no such block");
      return nullptr;
    }
    int64_t base = 0, end = 0;
    switch (slot.space) {
      case Space::kInput:
      case Space::kResidualIn:
      case Space::kResidual: end = world_.input_bytes[rank][slot.block]; break;
      case Space::kOutput: end = world_.output_bytes[rank][slot.block]; break;
      case Space::kScratch:
        base = schedule.scratch[slot.block].begin;
        end = schedule.scratch[slot.block].end;
        break;
      case Space::kCode:
        base = schedule.code[slot.block].begin;
        end = schedule.code[slot.block].end;
        if (slot.begin != base || slot.end != end) Fail(rank, id, "uses a part of a code");
        break;
    }
    if (slot.begin < base || slot.end > end || slot.begin > slot.end) {
      Fail(rank, id, "a range is outside its block, which is [" + std::to_string(base) + "," +
                         std::to_string(end) + ")");
      return nullptr;
    }
    if (slot.begin % world_.unit != 0 || (slot.end % world_.unit != 0 && slot.end != end)) {
      Fail(rank, id, "a range begins or ends inside " + std::to_string(world_.unit) +
                         " bytes, elsewhere than where its block ends");
      return nullptr;
    }
    return blocks[slot.block].data() + world_.CellsBefore(slot.begin) - world_.CellsBefore(base);
  }

  int64_t CountOf(const Slot& slot) const {
    return world_.CellsBefore(slot.end) - world_.CellsBefore(slot.begin);
  }

  std::vector<Cell> Read(int rank, TaskId id, const Slot& slot) {
    const Cell* cells = Cells(rank, id, slot);
    if (cells == nullptr) return {};
    std::vector<Cell> copy(cells, cells + CountOf(slot));
    for (const Cell& cell : copy) {
      if (cell.value < 0) Fail(rank, id, "reads what nothing has written");
    }
    return copy;
  }

  void Write(int rank, TaskId id, const Slot& slot, const std::vector<Cell>& cells) {
    Cell* at = Cells(rank, id, slot);
    if (at == nullptr) return;
    const bool given = slot.space == Space::kInput || slot.space == Space::kResidualIn;
    if (given && slot.bytes() > 0) Fail(rank, id, "writes an operand");
    if (!outcome_.error.empty()) return;
    const int64_t first = world_.CellsBefore(slot.begin);
    bool stays = static_cast<int64_t>(cells.size()) == CountOf(slot);
    if (!world_.cuts.empty()) {
      for (size_t i = 0; stays && i < cells.size(); ++i) {
        stays = cells[i].place == first + static_cast<int64_t>(i);
      }
    }
    if (!stays) return Fail(rank, id, "moves values to another address than theirs");
    std::copy(cells.begin(), cells.end(), at);
    if (world_.shared_memory && slot.space == Space::kOutput && slot.block == 0 &&
        slot.bytes() > 0) {
      std::copy(cells.begin(), cells.end(),
                memory_[rank].spaces[0][0].data() + first);
    }
  }

  void Complete(int rank, TaskId id) {
    Memory& memory = memory_[rank];
    const Schedule& schedule = world_.schedules[rank];
    const Task& task = schedule.tasks[id];
    memory.done[id] = 1;
    ForBlocks(task, schedule, [&](size_t space, int32_t block) {
      if (--memory.uses_left[space][block] > 0) return;
      memory.held_bytes -=
          (space == static_cast<size_t>(Space::kCode) ? schedule.code : schedule.scratch)[block]
              .bytes();
    });
    --memory.lane_left[task.lane];
    while (memory.first_lane < static_cast<int>(memory.lane_left.size()) &&
           memory.lane_left[memory.first_lane] == 0) {
      ++memory.first_lane;
    }
    for (TaskId parked : std::exchange(memory.parked, {})) MakeReady(rank, parked);
    for (TaskId follower : memory.followers[id]) {
      if (--memory.waits[follower] == 0) MakeReady(rank, follower);
    }
  }

  void Execute(int rank, TaskId id) {
    const Schedule& schedule = world_.schedules[rank];
    const Task& task = schedule.tasks[id];
    const auto sources = schedule.SourcesOf(task);
    if (!Admit(rank, id)) return;
    if (task.kind != TaskKind::kSend && task.kind != TaskKind::kRecv) {
      for (const Slot& slot : sources) {
        if (slot.bytes() != task.dst.bytes()) return Fail(rank, id, "its ranges differ in size");
      }
    }
    switch (task.kind) {
      case TaskKind::kSend:
      case TaskKind::kRecv: {
        const bool send = task.kind == TaskKind::kSend;
        const auto key = send ? std::tuple(rank, task.peer, task.tag)
                              : std::tuple(task.peer, rank, task.tag);
        const auto other = posted_.find(key);
        if (other == posted_.end()) {
          posted_[key] = id;
          return;
        }
        const TaskId other_id = other->second;
        posted_.erase(other);
        if (send) {
          Pass(rank, id, task.peer, other_id);
        } else {
          Pass(task.peer, other_id, rank, id);
        }
        return;
      }
      case TaskKind::kMerge: {
        std::vector<std::vector<Cell>> parts;
        for (const Slot& slot : sources) parts.push_back(Read(rank, id, slot));
        if (!outcome_.error.empty()) return;
        std::vector<Cell> merged = parts[0];
        if (task.dst.space == Space::kCode) return Fail(rank, id, "merges into a code");
        std::vector<int> values(parts.size());
        for (size_t i = 0; i < merged.size(); ++i) {
          for (size_t p = 0; p < parts.size(); ++p) {
            if (parts[p].size() != merged.size()) return Fail(rank, id, "merges other addresses");
            if (parts[p][i].block != merged[i].block || parts[p][i].place != merged[i].place) {
              return Fail(rank, id, "merges values of different addresses");
            }
            if (expressions_.IsFinal(parts[p][i].value)) {
              return Fail(rank, id, "merges what a final merge has given");
            }
            values[p] = parts[p][i].value;
          }
          if (CountLeaves(values) > 2 * world_.schedules.size()) {
            return Fail(rank, id, "merges some rank's values more than once");
          }
          merged[i].value = expressions_.Merged(values, task.final);
        }
        Write(rank, id, task.dst, merged);
        break;
      }
      case TaskKind::kCopy:
        if (sources[0].space == Space::kCode || task.dst.space == Space::kCode) {
          Fail(rank, id, "copies a code");
        }
        Write(rank, id, task.dst, Read(rank, id, sources[0]));
        break;
      case TaskKind::kEncode: {
        outcome_.encoded_bytes += sources[0].bytes();
        if (sources[0].space == Space::kCode || task.dst.space != Space::kCode) {
          Fail(rank, id, "encodes a code, or into something else than one");
        }
        std::vector<Cell> cells = Read(rank, id, sources[0]);
        if (!outcome_.error.empty()) return;
        for (Cell& cell : cells) {
          if (world_.exact) continue;
          cell.value = expressions_.Coded(cell.value, task.peer, static_cast<int>(task.tag));
        }
        Write(rank, id, task.dst, cells);
        break;
      }
      case TaskKind::kDecode:
        outcome_.decoded_bytes += task.dst.bytes();
        if (sources[0].space != Space::kCode || task.dst.space == Space::kCode) {
          Fail(rank, id, "decodes something else than a code, or into one");
        }
        Write(rank, id, task.dst, Read(rank, id, sources[0]));
        break;
      case TaskKind::kResidual: Lose(rank, id, task, sources); break;
      case TaskKind::kNumber:
      case TaskKind::kLibrary: return Fail(rank, id, "is of no schedule");
    }
    Complete(rank, id);
  }

  // Adds the task's encoding to outcome_.lost of the cells of Residual.
  void Lose(int rank, TaskId id, const Task& task, std::span<const Slot> sources) {
    const bool more = sources.size() > 2;
    if (task.dst.space != Space::kResidual || (more && sources[2] != task.dst)) {
      return Fail(rank, id, "writes no residual, or adds to another one");
    }
    if (sources.empty()) return LoseNothing(rank, id, task.dst);
    std::vector<Cell> values = Read(rank, id, sources[0]);
    const std::vector<Cell> decoded = Read(rank, id, sources[1]);
    if (more) Read(rank, id, sources[2]);
    if (!outcome_.error.empty()) return;
    if (decoded.size() != values.size()) return Fail(rank, id, "compares with another code");
    const int64_t first = world_.CellsBefore(task.dst.begin);
    for (size_t i = 0; i < values.size(); ++i) {
      const Cell& encoded = decoded[i];
      if (encoded.block != values[i].block || encoded.place != values[i].place ||
          !expressions_.IsCodeOf(encoded.value, values[i].value)) {
        return Fail(rank, id, "compares with another code");
      }
      if (encoded.block != task.dst.block || encoded.place != first + static_cast<int64_t>(i)) {
        return Fail(rank, id, "belongs to another range");
      }
      if (expressions_.IsFinal(encoded.value) != task.final) {
        return Fail(rank, id, "is final where its values come from a final merge, and only there");
      }
      auto& lost = outcome_.lost[rank][static_cast<size_t>(encoded.block)][static_cast<size_t>(encoded.place)];
      if (more == lost.empty()) return Fail(rank, id, "overwrites an earlier residual, or adds to none");
      lost.push_back(values[i].value);
    }
    EndOperands(rank, id, task.dst, std::move(values));
  }

  void LoseNothing(int rank, TaskId id, const Slot& dst) {
    std::vector<Cell> values = Read(rank, id, dst);
    if (!outcome_.error.empty()) return;
    for (const Cell& cell : values) {
      if (!outcome_.lost[rank][static_cast<size_t>(cell.block)][static_cast<size_t>(cell.place)].empty()) {
        return Fail(rank, id, "overwrites an earlier residual");
      }
    }
    EndOperands(rank, id, dst, std::move(values));
  }

  void EndOperands(int rank, TaskId id, const Slot& dst, std::vector<Cell> cells) {
    for (Cell& cell : cells) cell.value = expressions_.Gone();
    Write(rank, id, dst, cells);
  }

  void Pass(int sender, TaskId send, int receiver, TaskId recv) {
    const Schedule& schedule = world_.schedules[receiver];
    const auto from = world_.schedules[sender].SourcesOf(world_.schedules[sender].tasks[send]);
    const auto grouped = schedule.SourcesOf(schedule.tasks[recv]);
    const std::span<const Slot> to =
        grouped.empty() ? std::span<const Slot>(&schedule.tasks[recv].dst, 1) : grouped;
    if (from.size() != to.size()) return Fail(sender, send, "its receive has another number of ranges");
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i].bytes() != to[i].bytes()) return Fail(sender, send, "its receive has another size");
      if ((from[i].space == Space::kCode) != (to[i].space == Space::kCode)) {
        return Fail(sender, send, "it is a code at one end only");
      }
      if (from.size() > 1 && from[i].space == Space::kCode) {
        return Fail(sender, send, "several codes in one message");
      }
      std::vector<Cell> cells = Read(sender, send, from[i]);
      if (!outcome_.error.empty()) return;
      Write(receiver, recv, to[i], cells);
    }
    Complete(sender, send);
    Complete(receiver, recv);
  }

  const World& world_;
  Expressions& expressions_;
  std::mt19937 random_;
  Outcome outcome_;
  Cell nothing_;
  std::vector<Memory> memory_;
  std::vector<std::pair<int, TaskId>> ready_;
  std::map<std::tuple<int, int, uint32_t>, TaskId> posted_;
};

}  // namespace

int64_t World::CellsBefore(int64_t address) const {
  if (cuts.empty()) return (address + unit - 1) / unit;
  return std::lower_bound(cuts.begin(), cuts.end(), address) - cuts.begin();
}

void CutAtSlots(World* world) {
  std::set<int64_t> cuts = {0};
  for (const auto* blocks : {&world->input_bytes, &world->output_bytes}) {
    for (const auto& bytes : *blocks) cuts.insert(bytes.begin(), bytes.end());
  }
  const auto cut_at = [&](const Slot& slot) {
    cuts.insert(slot.begin);
    cuts.insert(slot.end);
  };
  for (const Schedule& schedule : world->schedules) {
    for (const auto* slots : {&schedule.sources, &schedule.scratch, &schedule.code}) {
      for (const Slot& slot : *slots) cut_at(slot);
    }
    for (const Task& task : schedule.tasks) cut_at(task.dst);
  }
  world->cuts.assign(cuts.begin(), cuts.end());
}

Outcome RunSymbols(const World& world, Expressions& expressions, uint32_t seed) {
  return Oracle(world, expressions, seed).Run();
}

}  // namespace jaxccomp
