#include "execution/library_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "collective/patterns/binomial.h"
#include "common/buffer_pool.h"
#include "execution/collective_library.h"
#include "execution/library_path.h"

namespace jaxccomp {
namespace {

constexpr Collective kCollectives[] = {
    Collective::kBcast,   Collective::kAllreduce,     Collective::kReduce,
    Collective::kGather,  Collective::kAllgather,     Collective::kScatter,
    Collective::kAlltoall, Collective::kReduceScatter, Collective::kBarrier,
    Collective::kGatherv, Collective::kAllgatherv,     Collective::kScatterv,
    Collective::kAlltoallv, Collective::kReduceScatterv, Collective::kScan, Collective::kExscan};
// Tags of the empty messages up the tree, and of the messages with the issue number down.
constexpr uint32_t kComing = 0, kNumbered = 1;
// The scratch block of the issue number.
constexpr int32_t kNumberBlock = 0;
constexpr int64_t kNumberBytes = sizeof(IssueNumber);

Status Refuse(const OpSpec& spec, const std::string& why) {
  return {Code::kUnimplemented, spec.ToString() + ": " + why + "; leave backend=\"auto\" for it"};
}

Status Check(const OpSpec& spec, const Communicator& comm, const Call& call) {
  if (!std::ranges::count(kCollectives, spec.collective)) {
    return Refuse(spec, "backend=\"mpi\" has no such operation");
  }
  if (spec.codec != "raw" || spec.has_ref || spec.feedback) {
    return Refuse(spec, "MPI sends values as they are, without codec, reference or feedback");
  }
  if (std::set<int>(comm.processes.begin(), comm.processes.end()).size() != comm.processes.size()) {
    return Refuse(spec, "MPI's ranks are processes, and several members of this communicator are "
                        "devices of one process");
  }
  const CollectiveInfo& info = Info(spec.collective);
  for (const auto& [tensors, blocks] :
       {std::pair{&call.inputs, info.input}, std::pair{&call.outputs, info.output}}) {
    // Blocks of different sizes have int displacements in MPI, so the limit holds for the whole tensor.
    const bool all_alike = blocks == Blocks::kPerRank && !spec.VariableCounts();
    for (const Tensor& t : *tensors) {
      const int64_t count = t.bytes / SizeBytes(t.dtype) / (all_alike ? comm.size() : 1);
      if (count <= CollectiveLibrary::kMaxCount) continue;
      return Refuse(spec, "MPI counts up to " + std::to_string(CollectiveLibrary::kMaxCount) +
                              " values, and a " + (spec.VariableCounts() ? "tensor" : "block") +
                              " here has " + std::to_string(count));
    }
  }
  return Status::Ok();
}

class Builder {
 public:
  explicit Builder(Plan* plan) : plan_(*plan) {
    plan_.lane_tasks = {0};
    plan_.scratch_bytes = {kNumberBytes};
    plan_.scratch_uses = {0};
    plan_.limits.bound_bytes = plan_.limits.early_bytes = BufferPool::TakenBytes(kNumberBytes);
    number_ = {0, 1};
    plan_.parts.push_back({Space::kScratch, kNumberBlock, DType::kUInt64, 0, kNumberBytes});
  }

  // The first `rows` rows of each tensor, or all rows.
  PartRange Rows(Space space, const std::vector<Tensor>& tensors, std::optional<int64_t> rows = {}) {
    const auto first = static_cast<int32_t>(plan_.parts.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& t = tensors[i];
      const int64_t bytes = rows.has_value() && t.rows > 0 ? t.bytes / t.rows * *rows : t.bytes;
      if (bytes > 0) plan_.parts.push_back({space, static_cast<int32_t>(i), t.dtype, 0, bytes});
    }
    return {first, static_cast<int32_t>(plan_.parts.size()) - first};
  }

  TaskId Add(PlannedTask task, const std::vector<TaskId>& deps) {
    const auto id = static_cast<TaskId>(plan_.tasks.size());
    task.lane = 0;
    task.codes.assign(task.sources.size(), -1);
    task.dep_count = static_cast<int32_t>(deps.size());
    for (const TaskId dep : deps) plan_.tasks[dep].dependents.push_back(id);
    for (const int32_t block : task.touched_scratch) ++plan_.scratch_uses[block];
    if (task.kind == TaskKind::kRecv) plan_.receives[Plan::ReceiveKey(task.peer, task.tag)] = id;
    ++plan_.lane_tasks[0];
    plan_.tasks.push_back(std::move(task));
    return id;
  }

  TaskId Receive(int peer, uint32_t tag) {
    PlannedTask task = Message(TaskKind::kRecv, peer, tag);
    if (tag == kNumbered) task.dst = number_;
    return Add(std::move(task), {});
  }
  TaskId Send(int peer, uint32_t tag, const std::vector<TaskId>& deps) {
    PlannedTask task = Message(TaskKind::kSend, peer, tag);
    task.sources = {tag == kNumbered ? number_ : PartRange{}};
    return Add(std::move(task), deps);
  }
  TaskId Number(const std::vector<TaskId>& deps) {
    PlannedTask task = Task(TaskKind::kNumber);
    task.touched_scratch = {kNumberBlock};
    return Add(std::move(task), deps);
  }
  TaskId CallLibrary(PartRange results, int64_t bytes, TaskId numbered) {
    PlannedTask task = Task(TaskKind::kLibrary);
    task.touched_scratch = {kNumberBlock};
    task.dst = results;
    task.bytes = bytes;
    return Add(std::move(task), {numbered});
  }
  // A copy, or a merge of one source in place, which divides by the plan's divisor.
  void Compute(TaskKind kind, PartRange to, PartRange from, int64_t bytes, const std::vector<TaskId>& deps) {
    PlannedTask task = Task(kind);
    task.final = true;
    task.dst = to;
    task.sources = {from};
    task.bytes = bytes;
    Add(std::move(task), deps);
  }

 private:
  static PlannedTask Task(TaskKind kind) {
    PlannedTask task{};
    task.kind = kind;
    task.peer = -1;
    return task;
  }
  static PlannedTask Message(TaskKind kind, int peer, uint32_t tag) {
    PlannedTask task = Task(kind);
    task.peer = peer;
    task.tag = tag;
    if (tag == kNumbered) {
      task.bytes = kNumberBytes;
      task.touched_scratch = {kNumberBlock};
    }
    return task;
  }

  Plan& plan_;
  PartRange number_;
};

}  // namespace

Status PlanForLibrary(const OpSpec& spec, const Endpoint& endpoint, const Call& call, Plan* plan) {
  const Communicator& comm = *endpoint.communicator;
  if (Status status = Check(spec, comm, call); !status.ok()) return status;
  plan->by_library = true;
  Builder builder(plan);

  const BinomialNode node(endpoint.member, 0, comm.size());
  std::vector<int> children;
  for (int distance = 1; distance < node.limit() && node.virtual_rank + distance < node.ranks;
       distance *= 2) {
    children.push_back(node.virtual_rank + distance);
  }
  std::vector<TaskId> came;
  for (const int child : children) came.push_back(builder.Receive(child, kComing));
  TaskId numbered;
  if (node.is_root()) {
    numbered = builder.Number(came);
  } else {
    builder.Send(node.parent(), kComing, came);
    numbered = builder.Receive(node.parent(), kNumbered);
  }
  for (auto child = children.rbegin(); child != children.rend(); ++child) {   // the largest subtree first
    builder.Send(*child, kNumbered, {numbered});
  }

  const bool is_root = endpoint.member == spec.root;
  static constexpr Collective kToRoot[] = {Collective::kReduce, Collective::kGather, Collective::kGatherv};
  const bool gives_to_root = std::ranges::count(kToRoot, spec.collective) > 0;
  const bool copies = spec.collective == Collective::kBcast && is_root;   // MPI_Ibcast does not write the root's result
  const int first = spec.reverse ? comm.size() - 1 : 0;
  const bool has_prefix = spec.collective != Collective::kExscan || endpoint.member != first;
  const bool has_results =
      spec.collective != Collective::kBarrier && (!gives_to_root || is_root) && has_prefix;
  int64_t bytes = 0;
  for (const Tensor& t : call.outputs) bytes += t.bytes;
  std::optional<int64_t> rows;
  if (spec.VariableCounts()) {
    Result<BlockRows> each = RowsOf(spec, endpoint.member, comm.size());
    if (!each.ok()) return each.status();
    rows = std::accumulate(each->output.begin(), each->output.end(), int64_t{0});
    plan->library_rows = std::move(*each);
  }
  const PartRange results =
      has_results ? builder.Rows(Space::kOutput, call.outputs, rows) : PartRange{};
  const TaskId moved = builder.CallLibrary(copies ? PartRange{} : results, bytes, numbered);
  if (copies) {
    builder.Compute(TaskKind::kCopy, results, builder.Rows(Space::kInput, call.inputs), bytes, {});
  }
  if (plan->divisor > 1 && has_results) {
    builder.Compute(TaskKind::kMerge, results, results, bytes, {moved});
  }
  return Status::Ok();
}

}  // namespace jaxccomp
