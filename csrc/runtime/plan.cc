#include "runtime/plan.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>

#include "collective/algorithm_spec.h"
#include "common/stream_copy.h"
#include "runtime/memory.h"
#include "runtime/reference.h"
#include "runtime/sizes.h"

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
    plan_->tasks.resize(schedule_.tasks.size());
    for (size_t i = 0; i < schedule_.tasks.size(); ++i) AddTask(static_cast<TaskId>(i));
    AddCodeSizes();
  }

 private:
  void AddTask(TaskId id) {
    const Task& from = schedule_.tasks[id];
    PlannedTask& to = plan_->tasks[id];
    to.kind = from.kind;
    to.final = from.final;
    to.lane = from.lane;
    ++plan_->lane_tasks[from.lane];
    to.peer = from.peer;
    to.tag = from.tag;
    task_ = &to;
    const auto sources = schedule_.SourcesOf(from);

    if (from.kind == TaskKind::kRecv && from.dst.bytes() == 0 && !sources.empty()) {
      to.dst = Resolve(sources);  // grouped: the sources are the destinations
    } else {
      if (from.kind != TaskKind::kSend) {
        if (from.dst.space == Space::kCode) to.dst_code = TouchCode(from.dst.block);
        else to.dst = Resolve({&from.dst, 1});
      }
      if (from.kind == TaskKind::kSend && sources.size() > 1) {
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
    to.bytes = from.kind == TaskKind::kSend
                   ? std::accumulate(sources.begin(), sources.end(), int64_t{0},
                                     [](int64_t sum, const Slot& s) { return sum + s.bytes(); })
                   : from.dst.bytes();
    if (from.kind == TaskKind::kSend && to.src_code < 0) {
      to.staged_bytes = to.sources[0].count > 1 ? to.bytes : 0;
    }
    if (from.kind == TaskKind::kRecv && to.dst_code < 0) {
      to.staged_bytes = to.dst.count > 1 ? to.bytes : 0;
    }
    if (from.kind == TaskKind::kRecv) {
      plan_->receives[Plan::ReceiveKey(from.peer, from.tag)] = id;
    }
    for (TaskId dep : schedule_.DepsOf(from)) {
      if (dep == kNoTask) continue;
      plan_->tasks[dep].dependents.push_back(id);
      ++to.dep_count;
    }
  }

  // The parts behind each code are those of a task that makes or decodes it. What is only passed on
  // belongs to blocks that are all alike.
  void AddCodeSizes() {
    for (const Slot& values : schedule_.code) {
      int64_t most_bytes = 0;
      sides_.ResolveScratch(values.begin, values.end, [&](DType dtype, int64_t, int64_t bytes) {
        most_bytes += MostEncodedBytes(dtype, bytes);
      });
      plan_->code_bytes.push_back(most_bytes);
    }
    for (const PlannedTask& task : plan_->tasks) {
      const bool encodes = task.kind == TaskKind::kEncode;
      const PartRange range = encodes ? task.sources[0] : task.dst;
      if (range.count == 0 || task.touched_codes.empty()) continue;
      int64_t most_bytes = 0;
      for (int32_t i = range.first; i < range.first + range.count; ++i) {
        most_bytes += MostEncodedBytes(plan_->parts[i].dtype, plan_->parts[i].bytes);
      }
      for (int32_t code : task.touched_codes) plan_->code_bytes[code] = most_bytes;
    }
  }

  // An encoded block is, per part, the number of encoded bytes (int64) and the bytes.
  int64_t MostEncodedBytes(DType dtype, int64_t bytes) const {
    const Codec& codec = *plan_->codec;
    return static_cast<int64_t>(sizeof(int64_t)) + kReferenceChecksumBytes +
           (codec.Supports(dtype) ? codec.MaxEncodedBytes(dtype, bytes / SizeBytes(dtype)) : bytes);
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
      const Layout& layout = s.space == Space::kInput ? sides_.input : sides_.output;
      const bool loss = s.space == Space::kLoss;
      layout.Resolve(s.block, s.begin, s.end, &found_);
      for (const TensorPart& p : found_) {
        plan_->parts.push_back({loss ? Space::kOutput : s.space,
                                p.tensor + (loss ? sides_.first_loss : 0), p.dtype, p.offset,
                                p.bytes});
      }
    }
    return {first, static_cast<int32_t>(plan_->parts.size()) - first};
  }

  const Sides& sides_;
  const Schedule& schedule_;
  Plan* const plan_;
  PlannedTask* task_ = nullptr;
  std::vector<TensorPart> found_;
};

// The parts of the results that no task writes.
std::vector<Part> UnwrittenResults(const Plan& plan, const std::vector<Tensor>& outputs) {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> written(outputs.size());
  for (const PlannedTask& task : plan.tasks) {
    for (int32_t i = 0; i < task.dst.count; ++i) {
      const Part& p = plan.parts[task.dst.first + i];
      if (p.space == Space::kOutput) written[p.index].emplace_back(p.offset, p.offset + p.bytes);
    }
  }
  std::vector<Part> unwritten;
  for (size_t t = 0; t < outputs.size(); ++t) {
    auto& ranges = written[t];
    std::sort(ranges.begin(), ranges.end());
    ranges.emplace_back(outputs[t].bytes, outputs[t].bytes);
    int64_t reached = 0;
    for (const auto& [begin, end] : ranges) {
      if (begin > reached) {
        unwritten.push_back({Space::kOutput, static_cast<int32_t>(t), outputs[t].dtype, reached,
                             begin - reached});
      }
      reached = std::max(reached, end);
    }
  }
  return unwritten;
}

std::vector<int64_t> TakenBytes(std::vector<int64_t> block_bytes) {
  for (int64_t& bytes : block_bytes) bytes = BufferPool::TakenBytes(bytes);
  return block_bytes;
}

int64_t TouchedBytes(const Call& call) {
  int64_t bytes = 0;
  for (const auto* tensors : {&call.inputs, &call.outputs}) {
    for (const Tensor& t : *tensors) bytes += t.bytes;
  }
  return bytes;
}

}  // namespace

Result<std::shared_ptr<const Plan>> MakePlan(const Site& site, const Endpoint& endpoint,
                                             const Call& call, const Options& options) {
  const OpSpec& spec = site.spec;
  Result<Sides> sides = MakeSides(spec, endpoint, call);
  if (!sides.ok()) return sides.status();
  Result<Problem> made = MakeProblem(spec, endpoint, call, *sides, options);
  if (!made.ok()) return made.status();
  Problem& problem = *made;
  if (Info(spec.collective).reduces) {
    for (const Tensor& t : call.inputs) {
      Status status = CheckReducible(t.dtype, spec.reduce_op, spec.mean);
      if (!status.ok()) return status;
      problem.wide |= IsHalf(t.dtype);
    }
  }
  if (site.codec != nullptr) {
    problem.coded = std::any_of(call.inputs.begin(), call.inputs.end(), [&](const Tensor& t) {
      return site.codec->Supports(t.dtype);
    });
  }
  Result<AlgorithmSpec> wanted = ParseAlgorithm(spec.collective, spec.algorithm);
  if (!wanted.ok()) return wanted.status();
  wanted->ApplyTo(&problem);
  Result<const Algorithm*> algorithm = SelectAlgorithm(spec.collective, wanted->name, problem);
  if (!algorithm.ok()) return algorithm.status();

  auto plan = std::make_shared<Plan>();
  plan->algorithm = *algorithm;
  plan->codec = problem.coded ? site.codec : nullptr;
  plan->reduce_op = spec.reduce_op;
  plan->divisor = spec.mean ? problem.ranks : 1;
  plan->total_bytes = problem.block_bytes;
  plan->streams = TouchedBytes(call) * std::ssize(endpoint.communicator->endpoints) >=
                  StreamFromBytes();
  const Schedule schedule = plan->algorithm->build(problem);
  Planner(*sides, schedule, plan.get()).Run();
  plan->limits = LimitsOf(schedule, TakenBytes(plan->scratch_bytes),
                          TakenBytes(plan->code_bytes), problem.chunk_bytes);
  if (spec.referenced) {
    if (Status status = CheckCodesHaveReferences(*plan); !status.ok()) return status;
  }
  plan->receives_wait =
      problem.coded || Info(spec.collective).reduces || !schedule.scratch.empty();
  plan->fills_identity = spec.collective == Collective::kExscan;
  if (!spec.StartsFromOperands()) {
    plan->unwritten = UnwrittenResults(*plan, call.outputs);
  }
  return std::shared_ptr<const Plan>(std::move(plan));
}

}  // namespace jaxccomp
