#include "execution/plan.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "collective/algorithm_spec.h"
#include "collective/residual_in.h"
#include "collective/patterns/split.h"
#include "common/stream_copy.h"
#include "execution/library_plan.h"
#include "execution/plan_tasks.h"
#include "execution/reference.h"
#include "execution/sizes.h"

namespace jaxccomp {
namespace {

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

int64_t TouchedBytes(const Call& call) {
  int64_t bytes = 0;
  for (const auto* tensors : {&call.inputs, &call.outputs, &call.residuals_in}) {
    for (const Tensor& t : *tensors) bytes += t.bytes;
  }
  return bytes;
}

// Minimum range of a codec that may encode partial sums: about the range of float32. Few codecs have a smaller range.
constexpr double kMinRange = 0x1p127;

Status CheckHost(const OpSpec& spec, const Codec* codec) {
  if (codec != nullptr && !codec->traits().runs_on_host) {
    return {Code::kUnimplemented, spec.ToString() + ": codec '" + codec->traits().spec +
                                      "' runs on GPUs only, and the tensors lie on the host; take "
                                      "another one, such as 'lossless', or move the tensors to a "
                                      "GPU"};
  }
  return Status::Ok();
}

}  // namespace

Result<std::shared_ptr<const Plan>> MakePlan(const CallSite& site, const Endpoint& endpoint,
                                             const Call& call, const Options& options) {
  const OpSpec& spec = site.spec;
  if (Status runs = CheckHost(spec, site.codec.get()); !runs.ok()) return runs;
  Result<Sides> sides = MakeSides(spec, endpoint, call);
  if (!sides.ok()) return sides.status();
  Result<Problem> made = MakeProblem(spec, endpoint, call, *sides, options);
  if (!made.ok()) return made.status();
  Problem& problem = *made;
  if (Info(spec.collective).reduces) {
    for (const Tensor& t : ValuesOf(spec, call)) {
      Status status = CheckReducible(t.dtype, spec.reduce_op, spec.mean);
      if (!status.ok()) return status;
      problem.wide |= IsHalf(t.dtype);
    }
  }
  if (site.codec != nullptr) {
    const auto is_encoded = [&](const Tensor& t) { return site.codec->Supports(t.dtype); };
    problem.encoded = std::ranges::any_of(ValuesOf(spec, call), is_encoded);
    problem.exact = site.codec->traits().lossless;
    // Partial results of other reductions, such as max, stay in the range of the operands.
    const bool leaves_range = spec.reduce_op == ReduceOp::kSum || spec.reduce_op == ReduceOp::kProd;
    problem.bounded = Info(spec.collective).reduces && leaves_range &&
                      std::any_of(call.inputs.begin(), call.inputs.end(), [&](const Tensor& t) {
                        return is_encoded(t) && site.codec->Bound(t.dtype).range < kMinRange;
                      });
    if (problem.messages.has_value()) {
      const auto values_end = call.outputs.end() - (spec.status ? 1 : 0);
      problem.messages->received_encoded = std::any_of(call.outputs.begin(), values_end, is_encoded);
    }
  }
  // The tensor of a staged operation is already encoded (cuda/stage/packed_codec.h), so no algorithm may divide it.
  if (spec.staged && site.codec != nullptr) {
    const int64_t received = problem.messages.has_value() ? problem.messages->received_bytes : 0;
    const int64_t whole = std::max({problem.chunk_bytes, problem.block_bytes, received});
    // Twice the size: algorithms that hold a chunk and its code in a lane divide at half of chunk_bytes (allgather).
    problem.chunk_bytes = 2 * AlignUp(whole);
  }
  Result<AlgorithmSpec> wanted = ParseAlgorithm(spec.collective, spec.algorithm);
  if (!wanted.ok()) return wanted.status();
  wanted->ApplyTo(&problem);
  Result<const Algorithm*> algorithm = SelectAlgorithm(spec.collective, *wanted, problem);
  if (!algorithm.ok()) return algorithm.status();

  auto plan = std::make_shared<Plan>();
  plan->algorithm = *algorithm;
  const bool encoded =
      problem.encoded || (problem.messages.has_value() && problem.messages->received_encoded);
  plan->codec = encoded ? site.codec : nullptr;
  plan->reduce_op = spec.reduce_op;
  plan->reverse = spec.reverse;
  plan->divisor = spec.mean ? problem.ranks : 1;
  plan->total_bytes = problem.block_bytes;
  plan->streams = TouchedBytes(call) * std::ssize(endpoint.communicator->endpoints) >=
                  StreamFromBytes();
  if (spec.mpi && problem.ranks > 1) {
    if (Status status = PlanForLibrary(spec, endpoint, call, plan.get()); !status.ok()) return status;
  } else {
    Schedule schedule = plan->algorithm->build(problem);
    if (spec.adds_residual) schedule = AddResidualsIn(schedule);
    plan->lane_series = schedule.lane_series;
    PlanTasks(*sides, schedule, plan.get());
    plan->limits = LimitsOf(schedule, problem.chunk_bytes);
  }
  if (spec.has_ref) {
    plan->references = PlacesOfReferences(spec, endpoint.member, call);
    if (Status status = CheckCodesHaveReferences(*plan); !status.ok()) return status;
  }
  plan->fills_identity = spec.collective == Collective::kExscan;
  plan->starts_from_operands = spec.StartsFromOperands();
  if (!plan->starts_from_operands) {
    plan->unwritten = UnwrittenResults(*plan, call.outputs);
  }
  return std::shared_ptr<const Plan>(std::move(plan));
}

}  // namespace jaxccomp
