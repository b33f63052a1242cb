// Runs the schedules of all ranks of an operation without memory or network, on symbols.
//
// A value is an expression: a rank's operand, a merge of expressions in order, or what a codec
// made of one. A cell is the expression of `unit` bytes together with the address (block and
// place) it belongs to, so values that end up at a wrong place are noticed. Tasks run in random
// order as their dependencies allow. A message passes when both ends are ready, and ends both: the
// strictest transport there is, so what does not deadlock here deadlocks nowhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collective/algorithm.h"
#include "collective/memory_limits.h"

namespace jaxccomp::testing {

// Interned expressions: equal ids, equal values bit for bit.
class Expressions {
 public:
  int Operand(int rank) { return Intern({0, rank}, {rank}); }
  // With carried residuals (collective/carry.h) an operand is the sum of these two, which by themselves, like
  // what a compression error has been written over, belong in no result.
  int Unadded(int rank) { return Intern({4, rank}, {-1}); }
  int Carried(int rank) { return Intern({5, rank}, {-1}); }
  int Gone() { return Intern({6}, {-1}); }
  int Coded(int of) { return Intern({1, of}, leaves_[of]); }
  int Merged(const std::vector<int>& parts, bool final) {
    if (parts == last_parts_ && final == last_final_) return last_id_;
    if (parts.size() == 2 && keys_[parts[0]][0] == 4 && !final) {
      const int rank = keys_[parts[0]][1];
      if (parts[1] == Carried(rank)) return Operand(rank);
    }
    std::vector<int> key = {final ? 3 : 2};
    std::vector<int> leaves;
    for (int part : parts) {
      key.push_back(part);
      leaves.insert(leaves.end(), leaves_[part].begin(), leaves_[part].end());
    }
    last_parts_ = parts;
    last_final_ = final;
    return last_id_ = Intern(key, leaves);
  }
  // What was encoded on the way to a value, each as often as it adds to it.
  std::vector<int> Encoded(int id) const {
    std::vector<int> encoded;
    std::vector<int> open = {id};
    while (!open.empty()) {
      const std::vector<int>& key = keys_[open.back()];
      open.pop_back();
      if (key[0] == 1) encoded.push_back(key[1]);
      if (key[0] != 0) open.insert(open.end(), key.begin() + 1, key.end());
    }
    return encoded;
  }
  // The operands in the order in which they were merged.
  const std::vector<int>& Leaves(int id) const { return leaves_[id]; }
  bool IsFinal(int id) const {
    while (keys_[id][0] == 1) id = keys_[id][1];
    return keys_[id][0] == 3;
  }
  bool IsOperand(int id) const { return keys_[id][0] == 0; }

 private:
  int Intern(const std::vector<int>& key, const std::vector<int>& leaves) {
    const auto [at, fresh] = ids_.try_emplace(key, static_cast<int>(keys_.size()));
    if (fresh) {
      keys_.push_back(key);
      leaves_.push_back(leaves);
    }
    return at->second;
  }
  std::map<std::vector<int>, int> ids_;
  std::vector<std::vector<int>> keys_, leaves_;
  std::vector<int> last_parts_;
  bool last_final_ = false;
  int last_id_ = -1;
};

struct Cell {
  int32_t block = -1;
  int32_t place = -1;
  int32_t value = -1;  // -1: never written
  friend bool operator==(const Cell&, const Cell&) = default;
};
using Block = std::vector<Cell>;

struct World {
  std::vector<Schedule> schedules;                // by rank
  std::vector<std::vector<int64_t>> input_bytes;  // by rank and block
  std::vector<std::vector<int64_t>> output_bytes;
  int64_t unit = kBlockAlign;
  int64_t chunk_bytes = int64_t{1} << 40;  // what memory is bounded by (memory_limits.h)
  bool shared_memory = false;  // Input block 0 and Output block 0 are the same
  bool exact = false;          // a code stands for the very values that were encoded
  bool carries = false;        // there are residuals of the call before, which lie where Residual does
};

struct Outcome {
  std::string error;                          // empty: all tasks ran
  std::vector<std::vector<Block>> output;     // by rank and block
  // By rank, block and place: the values whose encoding's loss Residual holds.
  std::vector<std::vector<std::vector<std::vector<int>>>> lost;
  std::vector<char> finished;                 // by rank: whether all its tasks ran
  int64_t encoded_bytes = 0;                  // over all ranks
  int64_t decoded_bytes = 0;                  // likewise, of decode tasks
  std::vector<int64_t> peak_bytes;            // by rank, of Scratch and Code: from the start of the
                                              // task that fills a block to the end of its last reader
  std::vector<int64_t> bound_bytes;           // by rank: what peak_bytes must not exceed
};

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
      if (stuck != done.end()) Fail(rank, stuck - done.begin(), "never ran (deadlock)");
      outcome_.output.push_back(std::move(memory_[rank].spaces[1]));
      if (!world_.carries || !outcome_.error.empty()) continue;
      for (const Block& block : memory_[rank].spaces[4]) {
        for (const Cell& cell : block) {
          if (cell.value != expressions_.Gone()) Fail(rank, 0, "leaves an operand in Residual");
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
    std::vector<int> uses_left[kSpaces];       // by Scratch or Code block: tasks that touch it
    std::vector<char> live[kSpaces];
    std::vector<int> lane_left;                // by lane: tasks not yet done
    int first_lane = 0;
    std::vector<TaskId> parked;                // tasks that wait for memory
    MemoryLimits limits;
    int64_t held_bytes = 0;
  };

  void Fail(int rank, TaskId id, const std::string& what) {
    if (!outcome_.error.empty()) return;
    outcome_.error = "rank " + std::to_string(rank) + " task " + std::to_string(id) + " " + what +
                     "\n" + world_.schedules[rank].ToString();
  }

  Block MakeBlock(int64_t bytes) const { return Block((bytes + world_.unit - 1) / world_.unit); }

  void SetUp(int rank) {
    const Schedule& schedule = world_.schedules[rank];
    Memory& memory = memory_[rank];
    for (size_t b = 0; b < world_.input_bytes[rank].size(); ++b) {
      Block block = MakeBlock(world_.input_bytes[rank][b]);
      for (size_t i = 0; i < block.size(); ++i) {
        block[i] = {static_cast<int32_t>(b), static_cast<int32_t>(i),
                    world_.carries ? expressions_.Unadded(rank) : expressions_.Operand(rank)};
      }
      memory.spaces[0].push_back(std::move(block));
    }
    for (int64_t bytes : world_.output_bytes[rank]) memory.spaces[1].push_back(MakeBlock(bytes));
    if (world_.shared_memory) memory.spaces[1][0] = memory.spaces[0][0];
    for (const Slot& slot : schedule.scratch) memory.spaces[2].push_back(MakeBlock(slot.bytes()));
    for (const Slot& slot : schedule.code) memory.spaces[3].push_back(MakeBlock(slot.bytes()));
    for (int64_t bytes : world_.input_bytes[rank]) {
      memory.spaces[4].push_back(MakeBlock(bytes));
      outcome_.lost[rank].emplace_back(memory.spaces[4].back().size());
    }
    if (world_.carries) {
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
      ++memory.lane_left[task.lane];
      const bool send = task.kind == TaskKind::kSend;
      if (send || task.kind == TaskKind::kRecv) {
        if (!tags.insert({send, task.peer, task.tag}).second) Fail(rank, id, "reuses a tag");
        if (task.peer == rank || task.peer < 0 ||
            task.peer >= static_cast<int>(world_.schedules.size())) {
          Fail(rank, id, "has no such peer");
        }
      }
    }
    for (size_t id = 0; id < count; ++id) {
      if (memory.waits[id] == 0) MakeReady(rank, id);
    }
  }

  void MakeReady(int rank, TaskId id) { ready_.push_back({rank, id}); }

  // Calls f(space, block) once for each Scratch and Code block that a task touches.
  template <typename F>
  static void ForBlocks(const Task& task, const Schedule& schedule, F&& f) {
    std::set<std::pair<size_t, int32_t>> blocks;
    auto add = [&](const Slot& slot) {
      if (slot.bytes() == 0) return;
      if (slot.space == Space::kScratch || slot.space == Space::kCode) {
        blocks.insert({static_cast<size_t>(slot.space), slot.block});
      }
    };
    add(task.dst);
    for (const Slot& slot : schedule.SourcesOf(task)) add(slot);
    for (const auto& [space, block] : blocks) f(space, block);
  }

  // Takes the memory that a task needs; false when it has to wait for it.
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
      Fail(rank, id, "names no block");
      return nullptr;
    }
    int64_t base = 0, end = 0;
    switch (slot.space) {
      case Space::kInput:
      case Space::kCarried:
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
      Fail(rank, id, "is out of range");
      return nullptr;
    }
    if (slot.begin % world_.unit != 0 || (slot.end % world_.unit != 0 && slot.end != end)) {
      Fail(rank, id, "is not aligned");
      return nullptr;
    }
    return blocks[slot.block].data() + (slot.begin - base) / world_.unit;
  }

  int64_t CountOf(const Slot& slot) const {
    return (slot.bytes() + world_.unit - 1) / world_.unit;
  }

  std::vector<Cell> Read(int rank, TaskId id, const Slot& slot) {
    const Cell* cells = Cells(rank, id, slot);
    if (cells == nullptr) return {};
    std::vector<Cell> copy(cells, cells + CountOf(slot));
    for (const Cell& cell : copy) {
      if (cell.value < 0) Fail(rank, id, "reads what nobody wrote");
    }
    return copy;
  }

  void Write(int rank, TaskId id, const Slot& slot, const std::vector<Cell>& cells) {
    Cell* at = Cells(rank, id, slot);
    if (at == nullptr) return;
    const bool given = slot.space == Space::kInput || slot.space == Space::kCarried;
    if (given && slot.bytes() > 0) Fail(rank, id, "writes an operand");
    if (static_cast<int64_t>(cells.size()) != CountOf(slot)) {
      return Fail(rank, id, "has sizes that differ");
    }
    std::copy(cells.begin(), cells.end(), at);
    if (world_.shared_memory && slot.space == Space::kOutput && slot.block == 0 &&
        slot.bytes() > 0) {
      std::copy(cells.begin(), cells.end(),
                memory_[rank].spaces[0][0].data() + slot.begin / world_.unit);
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
        std::vector<int> values(parts.size());
        for (size_t i = 0; i < merged.size(); ++i) {
          for (size_t p = 0; p < parts.size(); ++p) {
            if (parts[p].size() != merged.size()) return Fail(rank, id, "has sizes that differ");
            if (parts[p][i].block != merged[i].block || parts[p][i].place != merged[i].place) {
              return Fail(rank, id, "merges what does not belong together");
            }
            if (expressions_.IsFinal(parts[p][i].value)) {
              return Fail(rank, id, "merges what was final");
            }
            values[p] = parts[p][i].value;
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
          Fail(rank, id, "is no encoding");
        }
        std::vector<Cell> cells = Read(rank, id, sources[0]);
        if (!outcome_.error.empty()) return;
        if (!world_.exact) {
          for (Cell& cell : cells) cell.value = expressions_.Coded(cell.value);
        }
        Write(rank, id, task.dst, cells);
        break;
      }
      case TaskKind::kDecode:
        outcome_.decoded_bytes += task.dst.bytes();
        if (sources[0].space != Space::kCode || task.dst.space == Space::kCode) {
          Fail(rank, id, "is no decoding");
        }
        Write(rank, id, task.dst, Read(rank, id, sources[0]));
        break;
      case TaskKind::kResidual: Lose(rank, id, task, sources); break;
      case TaskKind::kNumber:
      case TaskKind::kLibrary: return Fail(rank, id, "is of no schedule");
    }
    Complete(rank, id);
  }

  // outcome_.lost has the values whose encodings were counted, by cell of Residual.
  void Lose(int rank, TaskId id, const Task& task, std::span<const Slot> sources) {
    const bool more = sources.size() > 2;
    if (task.dst.space != Space::kResidual || (more && sources[2] != task.dst)) {
      return Fail(rank, id, "is no loss");
    }
    if (sources.empty()) return LoseNothing(rank, id, task.dst);
    std::vector<Cell> values = Read(rank, id, sources[0]);
    const std::vector<Cell> decoded = Read(rank, id, sources[1]);
    if (more) Read(rank, id, sources[2]);
    if (!outcome_.error.empty()) return;
    if (decoded.size() != values.size()) return Fail(rank, id, "has sizes that differ");
    const int64_t first = task.dst.begin / world_.unit;
    for (size_t i = 0; i < values.size(); ++i) {
      Cell coded = values[i];
      coded.value = expressions_.Coded(coded.value);
      if (coded != decoded[i]) return Fail(rank, id, "compares with another code");
      if (coded.block != task.dst.block || coded.place != first + static_cast<int64_t>(i)) {
        return Fail(rank, id, "is misplaced");
      }
      if (expressions_.IsFinal(coded.value) != task.final) return Fail(rank, id, "counts wrongly");
      auto& lost = outcome_.lost[rank][static_cast<size_t>(coded.block)][static_cast<size_t>(coded.place)];
      if (more == lost.empty()) return Fail(rank, id, "forgets what was lost before, or adds to nothing");
      lost.push_back(values[i].value);
    }
    EndOperands(rank, id, task.dst, std::move(values));
  }

  void LoseNothing(int rank, TaskId id, const Slot& dst) {
    std::vector<Cell> values = Read(rank, id, dst);
    if (!outcome_.error.empty()) return;
    for (const Cell& cell : values) {
      if (!outcome_.lost[rank][static_cast<size_t>(cell.block)][static_cast<size_t>(cell.place)].empty()) {
        return Fail(rank, id, "forgets what was lost before");
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
    if (from.size() != to.size()) return Fail(sender, send, "is grouped at one end only");
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i].bytes() != to[i].bytes()) return Fail(sender, send, "has another size there");
      if ((from[i].space == Space::kCode) != (to[i].space == Space::kCode)) {
        return Fail(sender, send, "is coded at one end only");
      }
      if (from.size() > 1 && from[i].space == Space::kCode) {
        return Fail(sender, send, "groups codes");
      }
      Write(receiver, recv, to[i], Read(sender, send, from[i]));
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

// Two tasks that no chain of dependencies orders, one of which writes what the other touches; the
// empty string when there are none. With shared_memory, Input block 0 and Output block 0 are one,
// and copies between equal ranges of them do nothing.
inline std::string FindHazard(const Schedule& schedule, bool shared_memory) {
  const size_t count = schedule.tasks.size();
  const size_t words = (count + 63) / 64;
  std::vector<uint64_t> before(count * words, 0);
  struct Access { Slot slot; TaskId task; bool write; };
  std::map<std::pair<int, int>, std::vector<Access>> accesses;
  for (size_t id = 0; id < count; ++id) {
    const Task& task = schedule.tasks[id];
    for (TaskId dep : schedule.DepsOf(task)) {
      for (size_t w = 0; w < words; ++w) before[id * words + w] |= before[dep * words + w];
      before[id * words + dep / 64] |= uint64_t{1} << (dep % 64);
    }
    const auto sources = schedule.SourcesOf(task);
    const auto touch = [&](Slot slot, bool write) {
      if (slot.bytes() == 0) return;
      if (shared_memory && slot.space == Space::kOutput && slot.block == 0) {
        slot.space = Space::kInput;
      }
      if (slot.space == Space::kCarried) slot.space = Space::kResidual;
      accesses[{static_cast<int>(slot.space), slot.block}].push_back(
          {slot, static_cast<TaskId>(id), write});
    };
    if (shared_memory && task.kind == TaskKind::kCopy && task.dst.block == 0 &&
        sources[0] == Slot{Space::kInput, 0, task.dst.begin, task.dst.end}) {
      continue;
    }
    for (const Slot& slot : sources) touch(slot, task.kind == TaskKind::kRecv);
    if (task.kind != TaskKind::kSend) touch(task.dst, true);
  }
  for (const auto& [block, list] : accesses) {
    for (const Access& a : list) {
      if (!a.write) continue;
      for (const Access& b : list) {
        if (a.task == b.task || a.slot.begin >= b.slot.end || b.slot.begin >= a.slot.end) continue;
        const auto [first, second] = std::minmax(a.task, b.task);
        if (before[second * words + first / 64] >> (first % 64) & 1) continue;
        return "tasks " + std::to_string(first) + " and " + std::to_string(second) +
               " are not ordered\n" + schedule.ToString();
      }
    }
  }
  return "";
}

}  // namespace jaxccomp::testing
