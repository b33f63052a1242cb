#include "execution/plan_tasks.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <vector>

#include "execution/code_block.h"

namespace jaxccomp {
namespace {

class Planner {
 public:
  Planner(const Endpoint& endpoint, const Sides& sides, const Schedule& schedule, Plan* plan)
      : endpoint_(endpoint), sides_(sides), schedule_(schedule), plan_(plan) {}

  void Run() {
    for (const Slot& s : schedule_.scratch) plan_->scratch_bytes.push_back(s.bytes());
    plan_->lane_tasks.resize(static_cast<size_t>(schedule_.LaneCount()));
    plan_->scratch_uses.resize(schedule_.scratch.size());
    plan_->code_uses.resize(schedule_.code.size());
    plan_->tasks.reserve(schedule_.tasks.size());
    last_.reserve(schedule_.tasks.size());
    AddCodeSizes();
    for (const Task& task : schedule_.tasks) AddTask(task);
    SizeCodesByParts();
    if (plan_->on_device) {
      FindCodePeers();
      FindMergeable();
    }
  }

 private:
  void AddTask(const Task& from) {
    const auto sources = schedule_.SourcesOf(from);
    const bool sends = from.kind == TaskKind::kSend, receives = from.kind == TaskKind::kRecv;
    // Grouped: the sources are the destinations.
    const bool lands_in_sources = receives && from.dst.bytes() == 0 && !sources.empty();
    const std::span<const Slot> moved =
        sends || lands_in_sources ? sources : std::span<const Slot>(&from.dst, 1);
    const auto first = static_cast<TaskId>(plan_->tasks.size());

    if (plan_->on_device && sends && HasRawValues(moved)) {
      AddPacked(from, moved);
      return;
    }
    if (plan_->on_device && receives && HasRawValues(moved)) {
      AddUnpacked(from, moved);
    } else {
      PlannedTask& to = NewTask(from, from.kind);
      if (lands_in_sources) {
        to.dst = Resolve(sources);
      } else {
        if (!sends) {
          if (from.dst.space == Space::kCode) to.dst_code = TouchCode(from.dst.block);
          else to.dst = Resolve({&from.dst, 1});
        }
        if (sends && sources.size() > 1) {
          to.sources.push_back(Resolve(sources));
          to.codes.push_back(-1);
        } else {
          for (const Slot& s : sources) {
            const bool code = s.space == Space::kCode;
            to.codes.push_back(code ? TouchCode(s.block) : -1);
            to.sources.push_back(code ? PartRange{} : Resolve({&s, 1}));
          }
          if (sources.size() == 1 && to.codes[0] >= 0) to.src_code = to.codes[0];
        }
      }
      to.bytes = sends ? BytesOf(sources) : from.dst.bytes();
      // Codes are one piece, and empty ranges here.
      const PartRange range = sends ? to.sources[0] : to.dst;
      if ((sends || receives) && range.count > 1) to.staged_bytes = to.bytes;
      if (receives) plan_->receives[Plan::ReceiveKey(from.peer, from.tag)] = first;
      last_.push_back(first);
    }
    LinkDeps(from, first);
  }

  void LinkDeps(const Task& from, TaskId first) {
    for (TaskId dep : schedule_.DepsOf(from)) {
      if (dep != kNoTask) Link(last_[dep], first);
    }
  }

  PlannedTask& NewTask(const Task& from, TaskKind kind) {
    PlannedTask& to = plan_->tasks.emplace_back();
    to.kind = kind;
    to.final = from.final;
    to.lane = from.lane;
    ++plan_->lane_tasks[from.lane];
    to.peer = from.peer;
    to.tag = from.tag;
    task_ = &to;
    return to;
  }

  void Link(TaskId before, TaskId after) {
    plan_->tasks[before].dependents.push_back(after);
    ++plan_->tasks[after].dep_count;
  }

  static int64_t BytesOf(std::span<const Slot> slots) {
    return std::accumulate(slots.begin(), slots.end(), int64_t{0},
                           [](int64_t sum, const Slot& s) { return sum + s.bytes(); });
  }

  static bool HasRawValues(std::span<const Slot> slots) {
    return slots[0].space != Space::kCode && BytesOf(slots) > 0;
  }

  // Who waits for the send waits until it has read the values: that is when they are packed. They are
  // packed once for all who are as near, who can import them alike.
  void AddPacked(const Task& from, std::span<const Slot> sources) {
    const auto deps = schedule_.DepsOf(from);
    Packed& packed = packed_[NearnessOf(from.peer)];
    if (packed.task < 0 || packed.lane != from.lane || !std::ranges::equal(packed.sources, sources) ||
        !std::ranges::equal(packed.deps, deps)) {
      packed = {NewPack(from, sources), from.lane, sources, deps};
      LinkDeps(from, packed.task);
    }
    last_.push_back(packed.task);

    PlannedTask& send = NewTask(from, TaskKind::kSend);
    send.sources.emplace_back();
    send.src_code = plan_->tasks[packed.task].dst_code;
    send.codes.push_back(TouchCode(send.src_code));
    send.bytes = BytesOf(sources);
    Link(packed.task, static_cast<TaskId>(plan_->tasks.size() - 1));
  }

  TaskId NewPack(const Task& from, std::span<const Slot> sources) {
    PlannedTask& pack = NewTask(from, TaskKind::kEncode);
    pack.packed = true;
    pack.sources.push_back(Resolve(sources));
    pack.codes.push_back(-1);
    pack.bytes = BytesOf(sources);
    pack.dst_code = NewCode(pack.sources[0]);
    return static_cast<TaskId>(plan_->tasks.size() - 1);
  }

  // Whether a peer shares a GPU with this member, or a host.
  size_t NearnessOf(int peer) const {
    const Communicator& comm = *endpoint_.communicator;
    const int own = endpoint_.member;
    if (comm.gpus[peer] == comm.gpus[own]) return 2;
    return comm.hosts[peer] == comm.hosts[own] ? 1 : 0;
  }

  void AddUnpacked(const Task& from, std::span<const Slot> destinations) {
    const auto received = static_cast<TaskId>(plan_->tasks.size());
    plan_->receives[Plan::ReceiveKey(from.peer, from.tag)] = received;
    NewTask(from, TaskKind::kRecv).packed = true;

    PlannedTask& unpack = NewTask(from, TaskKind::kDecode);
    unpack.packed = true;
    unpack.dst = Resolve(destinations);
    unpack.sources.emplace_back();
    unpack.bytes = BytesOf(destinations);
    const int32_t code = unpack.src_code = NewCode(unpack.dst);
    unpack.codes.push_back(code);
    last_.push_back(received + 1);

    PlannedTask& receive = plan_->tasks[received];
    receive.bytes = BytesOf(destinations);
    task_ = &receive;
    receive.dst_code = TouchCode(code);
    Link(received, received + 1);
  }

  // A block for the packed parts, which the current task touches.
  int32_t NewCode(PartRange range) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < range.count; ++i) bytes += plan_->parts[range.first + i].bytes;
    plan_->code_bytes.push_back(bytes);
    plan_->code_uses.push_back(0);
    return TouchCode(static_cast<int32_t>(plan_->code_bytes.size()) - 1);
  }

  // The parts behind each code are those of a task that makes or decodes it. What is only passed on
  // belongs to blocks that are all alike.
  void AddCodeSizes() {
    for (const Slot& values : schedule_.code) {
      int64_t most_bytes = 0;
      sides_.ResolveScratch(values.begin, values.end, [&](DType dtype, int64_t, int64_t bytes) {
        most_bytes += MostBytes(dtype, bytes);
      });
      plan_->code_bytes.push_back(most_bytes);
    }
  }

  void SizeCodesByParts() {
    plan_->code_parts.resize(plan_->code_bytes.size());
    for (const PlannedTask& task : plan_->tasks) {
      const bool encodes = task.kind == TaskKind::kEncode;
      const PartRange range = encodes ? task.sources[0] : task.dst;
      if (range.count == 0 || task.touched_codes.empty() || task.packed) continue;
      int64_t most_bytes = 0;
      for (int32_t i = range.first; i < range.first + range.count; ++i) {
        most_bytes += MostBytes(plan_->parts[i].dtype, plan_->parts[i].bytes);
      }
      for (int32_t code : task.touched_codes) {
        plan_->code_bytes[code] = most_bytes;
        plan_->code_parts[code] = range.count;
      }
    }
  }

  void FindCodePeers() {
    plan_->code_peers.resize(plan_->code_bytes.size());
    for (const PlannedTask& task : plan_->tasks) {
      if (task.kind == TaskKind::kSend && task.src_code >= 0) {
        plan_->code_peers[task.src_code].push_back(task.peer);
      }
    }
  }

  // What comes raw, to be merged, may be merged from where its exporter has it: the merges then need
  // the block that it came in.
  void FindMergeable() {
    std::vector<std::vector<TaskId>> users(plan_->scratch_bytes.size());
    for (size_t i = 0; i < plan_->tasks.size(); ++i) {
      for (int32_t block : plan_->tasks[i].touched_scratch) {
        users[block].push_back(static_cast<TaskId>(i));
      }
    }
    for (size_t i = 0; i < plan_->tasks.size(); ++i) {
      PlannedTask& unpack = plan_->tasks[i];
      if (unpack.kind != TaskKind::kDecode || !unpack.packed || !LiesAsPacked(unpack.dst)) continue;
      const auto& all = users[plan_->parts[unpack.dst.first].index];
      unpack.mergeable = std::ranges::all_of(all, [&](TaskId user) {
        return user == static_cast<TaskId>(i) || OnlyMerges(plan_->tasks[user], unpack.dst);
      });
      for (TaskId user : all) {
        if (!unpack.mergeable || user == static_cast<TaskId>(i)) continue;
        task_ = &plan_->tasks[user];
        TouchCode(unpack.src_code);
      }
    }
  }

  bool LiesAsPacked(PartRange range) const {
    int64_t packed_bytes = 0;
    for (int32_t i = range.first; i < range.first + range.count; ++i) {
      const Part& part = plan_->parts[i];
      if (part.space != Space::kScratch || part.index != plan_->parts[range.first].index ||
          part.offset != packed_bytes) {
        return false;
      }
      packed_bytes += part.bytes;
    }
    return true;
  }

  // Reads the block of these parts, and writes another one.
  bool OnlyMerges(const PlannedTask& task, PartRange parts) const {
    const auto in_block = [&](const Part& part) {
      return part.space == Space::kScratch && part.index == plan_->parts[parts.first].index;
    };
    const auto written = std::span(plan_->parts).subspan(task.dst.first, task.dst.count);
    return task.kind == TaskKind::kMerge && std::ranges::none_of(written, in_block);
  }

  int64_t MostBytes(DType dtype, int64_t bytes) const {
    return MostCodeBytes(CodecFor(*plan_, dtype), dtype, bytes);
  }

  int32_t TouchCode(int32_t block) {
    auto& touched = task_->touched_codes;
    if (std::find(touched.begin(), touched.end(), block) == touched.end()) {
      touched.push_back(block);
      ++plan_->code_uses[block];
    }
    return block;
  }

  PartRange Resolve(std::span<const Slot> slots) {
    const auto first = static_cast<int32_t>(plan_->parts.size());
    for (const Slot& s : slots) {
      found_.clear();
      if (s.space == Space::kScratch) {
        const int64_t begin = schedule_.scratch[s.block].begin;
        auto& touched = task_->touched_scratch;
        if (std::find(touched.begin(), touched.end(), s.block) == touched.end()) {
          touched.push_back(s.block);
          ++plan_->scratch_uses[s.block];
        }
        // Values in scratch memory lie at their address in the block that they belong to. The
        // gaps between tensors are left out, as they are on the wire.
        sides_.ResolveScratch(s.begin, s.end, [&](DType dtype, int64_t address, int64_t bytes) {
          plan_->parts.push_back({s.space, s.block, dtype, address - begin, bytes});
        });
        continue;
      }
      const bool loss = s.space == Space::kResidual;
      const Layout& layout = s.space == Space::kOutput ? sides_.output : sides_.input;
      layout.Resolve(s.block, s.begin, s.end, &found_);
      for (const TensorPart& p : found_) {
        plan_->parts.push_back({loss ? Space::kOutput : s.space,
                                p.tensor + (loss ? sides_.first_loss : 0), p.dtype, p.offset,
                                p.bytes});
      }
    }
    return {first, static_cast<int32_t>(plan_->parts.size()) - first};
  }

  // What was packed last; sources and dependencies are the schedule's.
  struct Packed {
    TaskId task = -1;
    int32_t lane = 0;
    std::span<const Slot> sources;
    std::span<const TaskId> deps;
  };

  const Endpoint& endpoint_;
  const Sides& sides_;
  const Schedule& schedule_;
  Plan* const plan_;
  PlannedTask* task_ = nullptr;
  std::array<Packed, 3> packed_;   // by nearness
  std::vector<TaskId> last_;   // by task of the schedule: the one that its dependents wait for
  std::vector<TensorPart> found_;
};

}  // namespace

void PlanTasks(const Endpoint& endpoint, const Sides& sides, const Schedule& schedule, Plan* plan) {
  Planner(endpoint, sides, schedule, plan).Run();
}

}  // namespace jaxccomp
