#include "execution/sizes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "execution/ragged.h"

namespace jaxccomp {
namespace {

Status Wrong(const OpSpec& spec, const std::string& what) {
  return {Code::kInvalidArgument, spec.ToString() + ": " + what};
}

Status CheckRows(const OpSpec& spec, const std::vector<Tensor>& tensors,
                 const std::vector<int64_t>& rows_per_block, const char* side) {
  int64_t needed = 0;
  for (int64_t rows : rows_per_block) needed += rows;
  for (const Tensor& t : tensors) {
    if (t.rows < needed) {
      return Wrong(spec, std::string(side) + " has " + std::to_string(t.rows) +
                             " rows, counts ask for " + std::to_string(needed));
    }
  }
  return Status::Ok();
}

Status CheckReferences(const OpSpec& spec, const Call& call) {
  if (!spec.has_ref && call.refs.empty()) return Status::Ok();
  static constexpr Collective kTakesRef[] = {
      Collective::kBcast, Collective::kAllgather, Collective::kScatter, Collective::kSend,
      Collective::kRecv,  Collective::kSendrecv,  Collective::kPermute};
  if (!spec.has_ref || !std::ranges::count(kTakesRef, spec.collective)) {
    return Wrong(spec, "takes no references");
  }
  const auto& like = spec.collective == Collective::kAllgather ? call.outputs : call.inputs;
  bool fits = call.refs.size() == like.size() * static_cast<size_t>(spec.ReferencesEach());
  for (size_t i = 0; fits && i < call.refs.size(); ++i) {
    const Tensor& ref = call.refs[i];
    const Tensor& values = like[i % like.size()];
    fits = ref.dtype == values.dtype && ref.bytes == values.bytes;
  }
  if (fits) return Status::Ok();
  return Wrong(spec, "each operand needs references of its type and size");
}

Status CheckCarried(const OpSpec& spec, const Call& call) {
  if (!spec.adds_residual && call.residuals_in.empty()) return Status::Ok();
  const auto alike = [](const Tensor& residual, const Tensor& operand) {
    const bool widens = IsHalf(operand.dtype) && residual.dtype == DType::kFloat32;
    return (widens || residual.dtype == operand.dtype) && residual.rows == operand.rows &&
           residual.bytes / SizeBytes(residual.dtype) == operand.bytes / SizeBytes(operand.dtype);
  };
  if (!spec.feedback || !spec.adds_residual || !std::ranges::equal(call.residuals_in, call.inputs, alike)) {
    return Wrong(spec, "each operand needs feedback and a residual of its size, of its type or, for half "
                       "types, of float32");
  }
  return Status::Ok();
}


Status CheckFeedback(const OpSpec& spec, const Call& call) {
  if (Status status = CheckCarried(spec, call); !status.ok()) return status;
  if (!spec.feedback) return Status::Ok();
  const bool scatters = spec.collective == Collective::kReduceScatter;
  if ((spec.collective != Collective::kAllreduce && !scatters) ||
      spec.reduce_op != ReduceOp::kSum) {
    return Wrong(spec, "cannot return its compression error; only the sum and the mean of allreduce and of "
                       "reduce_scatter can");
  }
  const size_t count = call.inputs.size();
  bool fits = call.outputs.size() == 2 * count;
  for (size_t i = 0; fits && i < 2 * count; ++i) {
    const Tensor& values = ValuesOf(spec, call)[i % count];
    const Tensor& result = call.outputs[i];
    // reduce_scatter's block size is checked with the sizes of all collectives.
    fits = IsFloating(values.dtype) && result.dtype == values.dtype &&
           ((scatters && i < count) || result.bytes == values.bytes);
  }
  if (fits) return Status::Ok();
  return Wrong(spec, "each operand must be of a floating type, with two results of its type, the "
                     "second of its size");
}

Status CheckMember(const OpSpec& spec, int member, int ranks) {
  if (member >= OpSpec::kNobody && member < ranks) return Status::Ok();
  return Wrong(spec, "rank " + std::to_string(member) + " does not exist: there are " +
                         std::to_string(ranks));
}

// Fills in the messages that this rank sends and receives; either may be missing.
Status FillMessages(const OpSpec& spec, const Call& call, const Sides& sides, Problem* problem) {
  // Not emplace(): clang does not see a nested struct's default constructor there.
  problem->messages = Problem::Messages{};
  Problem::Messages& messages = *problem->messages;
  messages.destination = spec.Destination();
  messages.source = spec.Source();
  for (int member : {messages.destination, messages.source}) {
    if (Status status = CheckMember(spec, member, problem->ranks); !status.ok()) return status;
  }
  if (spec.collective == Collective::kSend) {
    if (call.inputs.size() == call.outputs.size() &&
        sides.output.BlockBytes(0) == problem->block_bytes) {
      return Status::Ok();
    }
    return Wrong(spec, "operand and result differ in size");
  }
  messages.received_bytes = sides.output.BlockBytes(0);
  if (spec.collective == Collective::kRecv) problem->block_bytes = messages.received_bytes;
  if (!spec.status) return Status::Ok();
  if (call.outputs.empty() || call.outputs.back().dtype != DType::kInt32 ||
      call.outputs.back().bytes != 2 * static_cast<int64_t>(sizeof(int32_t))) {
    return Wrong(spec, "the last result must be int32[2], for the source and the tag");
  }
  const std::vector<Tensor> values(call.outputs.begin(), call.outputs.end() - 1);
  messages.status_begin = messages.received_bytes - call.outputs.back().bytes;
  messages.status_bytes = call.outputs.back().bytes;
  messages.received_bytes = Layout::Whole(values).BlockBytes(0);
  return Status::Ok();
}

}  // namespace

const std::vector<Tensor>& ValuesOf(const OpSpec& spec, const Call& call) {
  return spec.adds_residual ? call.residuals_in : call.inputs;
}

Result<BlockRows> RowsOf(const OpSpec& spec, int rank, int ranks) {
  const auto& c = spec.counts;
  const bool matrix = spec.collective == Collective::kAlltoallv;
  const size_t expected = matrix ? static_cast<size_t>(ranks) * ranks : ranks;
  if (c.size() != expected) {
    return Wrong(spec, "counts has " + std::to_string(c.size()) + " entries, " +
                           std::to_string(expected) + " are needed for " +
                           std::to_string(ranks) + " ranks");
  }
  for (int64_t count : c) {
    if (count < 0) return Wrong(spec, "a count is negative");
  }
  const std::vector<int64_t> own = {matrix ? 0 : c[rank]};
  switch (spec.collective) {
    case Collective::kAllgatherv:
    case Collective::kGatherv:
      return BlockRows{own, c};
    case Collective::kScatterv:
    case Collective::kReduceScatterv:
      return BlockRows{c, own};
    default: {
      BlockRows rows;
      for (int j = 0; j < ranks; ++j) {
        rows.input.push_back(c[static_cast<size_t>(rank) * ranks + j]);
        rows.output.push_back(c[static_cast<size_t>(j) * ranks + rank]);
      }
      return rows;
    }
  }
}

Result<Sides> MakeSides(const OpSpec& spec, const Endpoint& endpoint, const Call& call) {
  const CollectiveInfo& info = Info(spec.collective);
  const int ranks = endpoint.communicator->size();
  Sides sides;
  if (Status status = CheckReferences(spec, call); !status.ok()) return status;
  if (Status status = CheckFeedback(spec, call); !status.ok()) return status;
  if (spec.collective == Collective::kRaggedAlltoall) {
    sides.input = Layout::Whole({call.inputs[0]});
    sides.output = Layout::Whole(call.outputs);
    return sides;
  }
  if (spec.PointToPoint()) {
    sides.input = Layout::Whole(call.inputs);
    sides.output = Layout::Whole(call.outputs);
    return sides;
  }
  std::vector<Tensor> results = call.outputs;
  if (spec.feedback) {   // the outputs are the results, then the residuals
    sides.first_loss = static_cast<int32_t>(call.inputs.size());
    results.resize(call.inputs.size());
  }
  if (call.inputs.size() != results.size()) {
    return Wrong(spec, "has " + std::to_string(call.inputs.size()) + " operands and " +
                           std::to_string(results.size()) + " results");
  }
  if (spec.VariableCounts()) {
    Result<BlockRows> rows = RowsOf(spec, endpoint.member, ranks);
    if (!rows.ok()) return rows.status();
    Status status = CheckRows(spec, call.inputs, rows->input, "the operand");
    if (status.ok()) status = CheckRows(spec, results, rows->output, "the result");
    if (!status.ok()) return status;
    sides.scratch_block = spec.collective == Collective::kReduceScatterv ? endpoint.member : 0;
    sides.input = Layout::Rows(call.inputs, std::move(rows->input));
    sides.output = Layout::Rows(results, std::move(rows->output));
    return sides;
  }
  const std::vector<Tensor>& values = ValuesOf(spec, call);
  const auto same_dtype = [](const Tensor& a, const Tensor& b) { return a.dtype == b.dtype; };
  if (!std::ranges::equal(values, call.inputs, same_dtype)) {
    for (const Tensor& operand : call.inputs) sides.operand_dtypes.push_back(operand.dtype);
  }
  const std::vector<int64_t> each(ranks, 1);
  for (const auto& [blocks, tensors] :
       {std::pair{info.input, &values}, std::pair{info.output, &std::as_const(results)}}) {
    if (blocks != Blocks::kPerRank) continue;
    for (const Tensor& t : *tensors) {
      if (t.rows != ranks) {
        return Wrong(spec, "the first axis is " + std::to_string(t.rows) +
                               " long, it must be the number of ranks, " + std::to_string(ranks));
      }
    }
  }
  sides.input = info.input == Blocks::kPerRank ? Layout::Rows(values, each)
                                               : Layout::Whole(values);
  sides.output = info.output == Blocks::kPerRank ? Layout::Rows(results, each)
                                                 : Layout::Whole(results);
  if (sides.input.BlockBytes(0) != sides.output.BlockBytes(0)) {
    return Wrong(spec, "operand and result differ in size");
  }
  return sides;
}

Result<Problem> MakeProblem(const OpSpec& spec, const Endpoint& endpoint, const Call& call,
                            const Sides& sides, const Options& options) {
  const int rank = endpoint.member;
  const int ranks = endpoint.communicator->size();
  Problem problem;
  problem.rank = rank;
  problem.ranks = ranks;
  // Differences to a reference have short codes, so a message has twice as many values.
  problem.chunk_bytes = options.chunk_bytes * (spec.has_ref ? 2 : 1);
  problem.feedback = spec.feedback;
  problem.hosts = endpoint.communicator->hosts;
  problem.rotation = static_cast<int>(spec.site & INT32_MAX);
  problem.reverse = spec.reverse;
  problem.multi_slot = true;
  problem.block_bytes = sides.input.BlockBytes(0);
  if (spec.PointToPoint()) {
    if (Status status = FillMessages(spec, call, sides, &problem); !status.ok()) return status;
    return problem;
  }

  if (Info(spec.collective).rooted) {
    if (spec.root < 0 || spec.root >= ranks) {
      return Wrong(spec, "the root must be in 0.." + std::to_string(ranks - 1));
    }
    problem.root = static_cast<int>(spec.root);
  }
  if (spec.VariableCounts()) {
    // The sizes of blocks of all tensors. If an operand has no rows, its result gives the size of a row.
    std::vector<Tensor> tensors = call.inputs;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].rows == 0) tensors[i] = call.outputs[i];
    }
    const Layout one = Layout::Rows(tensors, spec.counts);
    for (size_t i = 0; i < spec.counts.size(); ++i) {
      problem.counts.push_back(one.BlockBytes(static_cast<int>(i)));
    }
  }

  if (spec.collective == Collective::kRaggedAlltoall) {
    Status status = FillRagged(spec, call, &problem);
    if (!status.ok()) return status;
  }
  auto add_pair = [&](int64_t source, int64_t destination) {
    problem.pairs.emplace_back(static_cast<int>(source), static_cast<int>(destination));
  };
  switch (spec.collective) {
    case Collective::kSendrecv:
      add_pair(rank, spec.pairs.at(0));
      add_pair(spec.pairs.at(1), rank);
      break;
    case Collective::kPermute:
      for (size_t i = 0; i + 1 < spec.pairs.size(); i += 2) {
        add_pair(spec.pairs[i], spec.pairs[i + 1]);
      }
      break;
    default: break;
  }
  for (const auto& [source, destination] : problem.pairs) {
    for (int member : {source, destination}) {
      if (Status status = CheckMember(spec, member, ranks); !status.ok()) return status;
    }
  }
  return problem;
}

}  // namespace jaxccomp
