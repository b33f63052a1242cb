#include "execution/plan_tasks.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "execution/code_block.h"

namespace jaxccomp {
namespace {

class Planner {
 public:
  Planner(const Sides& sides, const Schedule& schedule, Plan* plan)
      : sides_(sides), schedule_(schedule), plan_(plan) {}

  void Run() {
    for (const Slot& s : schedule_.scratch) plan_->scratch_bytes.push_back(s.bytes());
    plan_->lane_tasks.resize(static_cast<size_t>(schedule_.LaneCount()));
    plan_->scratch_uses.resize(schedule_.scratch.size());
    plan_->code_uses.resize(schedule_.code.size());
    plan_->tasks.reserve(schedule_.tasks.size());
    AddCodeSizes();
    for (const Task& task : schedule_.tasks) AddTask(task);
    SizeCodesByParts();
  }

 private:
  void AddTask(const Task& from) {
    const auto sources = schedule_.SourcesOf(from);
    const bool sends = from.kind == TaskKind::kSend, receives = from.kind == TaskKind::kRecv;
    // A grouped receive: its sources are the destinations (schedule.h).
    const bool lands_in_sources = receives && from.dst.bytes() == 0 && !sources.empty();
    const auto task = static_cast<TaskId>(plan_->tasks.size());
    PlannedTask& to = plan_->tasks.emplace_back();
    task_ = &to;
    to.kind = from.kind;
    to.final = from.final;
    to.lane = from.lane;
    ++plan_->lane_tasks[from.lane];
    to.peer = from.peer;
    to.tag = from.tag;
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
    // A code is one piece, and its range is empty.
    const PartRange range = sends ? to.sources[0] : to.dst;
    if ((sends || receives) && range.count > 1) to.staged_bytes = to.bytes;
    if (receives) plan_->receives[Plan::ReceiveKey(from.peer, from.tag)] = task;
    for (TaskId dep : schedule_.DepsOf(from)) {
      if (dep == kNoTask) continue;
      plan_->tasks[dep].dependents.push_back(task);
      ++to.dep_count;
    }
  }

  static int64_t BytesOf(std::span<const Slot> slots) {
    return std::accumulate(slots.begin(), slots.end(), int64_t{0},
                           [](int64_t sum, const Slot& s) { return sum + s.bytes(); });
  }

  // Sizes code blocks by the layout of scratch memory. For codes that this rank only forwards this is final: then all
  // blocks have equal size.
  void AddCodeSizes() {
    for (const Slot& values : schedule_.code) {
      int64_t max_bytes = 0;
      sides_.ResolveScratch(values.begin, values.end, [&](int64_t, const TensorPart& p) {
        max_bytes += MaxBytes(p.dtype, p.bytes);
      });
      plan_->code_bytes.push_back(max_bytes);
    }
  }

  // Sizes the other codes again, by the parts that a task encodes to them or decodes from them.
  void SizeCodesByParts() {
    for (const PlannedTask& task : plan_->tasks) {
      const bool encodes = task.kind == TaskKind::kEncode;
      const PartRange range = encodes ? task.sources[0] : task.dst;
      if (range.count == 0 || task.touched_codes.empty()) continue;
      int64_t max_bytes = 0;
      for (int32_t i = range.first; i < range.first + range.count; ++i) {
        max_bytes += MaxBytes(plan_->parts[i].dtype, plan_->parts[i].bytes);
      }
      for (int32_t code : task.touched_codes) plan_->code_bytes[code] = max_bytes;
    }
  }

  int64_t MaxBytes(DType dtype, int64_t bytes) const {
    return MaxCodeBytes(CodecFor(*plan_, dtype), dtype, bytes);
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
        // Values in scratch memory have the addresses of their block. Gaps between tensors belong to no part.
        sides_.ResolveScratch(s.begin, s.end, [&](int64_t address, const TensorPart& p) {
          plan_->parts.push_back(
              {s.space, s.block, p.dtype, address - begin, p.bytes, p.tensor, p.offset_in_block});
        });
        continue;
      }
      const bool loss = s.space == Space::kResidual;
      const Layout& layout = s.space == Space::kOutput ? sides_.output : sides_.input;
      layout.Resolve(s.block, s.begin, s.end, &found_);
      for (const TensorPart& p : found_) {
        plan_->parts.push_back({loss ? Space::kOutput : s.space,
                                p.tensor + (loss ? sides_.first_loss : 0), p.dtype, p.offset,
                                p.bytes, p.tensor, p.offset_in_block});
        if (s.space == Space::kInput && !sides_.operand_dtypes.empty()) {
          Narrow(sides_.operand_dtypes[static_cast<size_t>(p.tensor)], &plan_->parts.back());
        }
      }
    }
    return {first, static_cast<int32_t>(plan_->parts.size()) - first};
  }

  // Changes the part to the same values in a narrower dtype.
  static void Narrow(DType dtype, Part* part) {
    const int64_t ratio = SizeBytes(part->dtype) / SizeBytes(dtype);
    part->dtype = dtype;
    part->offset /= ratio;
    part->offset_in_block /= ratio;
    part->bytes /= ratio;
  }

  const Sides& sides_;
  const Schedule& schedule_;
  Plan* const plan_;
  PlannedTask* task_ = nullptr;
  std::vector<TensorPart> found_;
};

}  // namespace

void PlanTasks(const Sides& sides, const Schedule& schedule, Plan* plan) {
  Planner(sides, schedule, plan).Run();
}

}  // namespace jaxccomp
