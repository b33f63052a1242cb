#include "nccl/operation.h"

#include <optional>
#include <string>

namespace jaxccomp::nccl {
namespace {

struct Element {
  Type type;
  int64_t bytes;         // of one; a complex number is two
  bool reduces = true;
};

// By DType: as what its values are reduced.
constexpr Element kElements[kDTypeCount] = {
    {Type::kUInt8, 1},           {Type::kInt8, 1},    {Type::kUInt8, 1, false},
    {Type::kInt32, 4},           {Type::kInt64, 8},   {Type::kUInt8, 1},
    {Type::kUInt8, 1, false},    {Type::kUInt32, 4},  {Type::kUInt64, 8},
    {Type::kFloat16, 2},         {Type::kBFloat16, 2}, {Type::kFloat32, 4},
    {Type::kFloat64, 8},         {Type::kFloat32, 4}, {Type::kFloat64, 8},
    {Type::kUInt8, 1, false},
};

const Element& ElementOf(DType dtype) { return kElements[static_cast<int>(dtype)]; }

std::optional<Reduction> ReductionOf(const OpSpec& spec) {
  if (spec.mean) return Reduction::kMean;
  switch (spec.reduce_op) {
    case ReduceOp::kSum: return Reduction::kSum;
    case ReduceOp::kProd: return Reduction::kProd;
    case ReduceOp::kMin: return Reduction::kMin;
    case ReduceOp::kMax: return Reduction::kMax;
    case ReduceOp::kAnd:
    case ReduceOp::kOr:
    case ReduceOp::kXor: break;
  }
  return std::nullopt;
}

bool HasCollective(Collective collective) {
  switch (collective) {
    case Collective::kBcast:
    case Collective::kAllreduce:
    case Collective::kReduce:
    case Collective::kAllgather:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kReduceScatter:
    case Collective::kAlltoall:
    case Collective::kSend:
    case Collective::kRecv:
    case Collective::kSendrecv:
    case Collective::kPermute: return true;
    default: return false;
  }
}

// The rank whose values this one gets in an exchange of pairs, and to whom it sends; -1: nobody.
struct Partners {
  int source = -1, destination = -1;
};

Partners PartnersOf(const OpSpec& spec, Seat seat) {
  Partners partners;
  if (spec.collective == Collective::kSendrecv) {
    return {static_cast<int>(spec.pairs.at(1)), static_cast<int>(spec.pairs.at(0))};
  }
  for (size_t i = 0; i + 1 < spec.pairs.size(); i += 2) {
    if (spec.pairs[i] == seat.rank) partners.destination = static_cast<int>(spec.pairs[i + 1]);
    if (spec.pairs[i + 1] == seat.rank) partners.source = static_cast<int>(spec.pairs[i]);
  }
  return partners;
}

// The calls of one group; the first that fails ends it.
class Group {
 public:
  Group(const Library& library, CommHandle comm, void* stream)
      : library_(library), comm_(comm), stream_(stream) {
    Take(library.group_start());
  }
  // A group that was begun must be ended, whatever has failed.
  Status End() {
    Take(library_.group_end());
    if (failed_ == kSuccess) return Status::Ok();
    return {Code::kInternal, library_.Describe(failed_, comm_)};
  }
  void Take(int outcome) {
    if (outcome != kSuccess && outcome != kInProgress && failed_ == kSuccess) failed_ = outcome;
  }
  void Send(const Tensor& tensor, int64_t row, int64_t rows, int peer) {
    if (peer < 0 || failed_ != kSuccess) return;
    Take(library_.send(At(tensor, row, rows), Size(tensor, rows), Type::kUInt8, peer, comm_, stream_));
  }
  void Receive(const Tensor& tensor, int64_t row, int64_t rows, int peer) {
    if (peer < 0 || failed_ != kSuccess) return;
    Take(library_.recv(At(tensor, row, rows), Size(tensor, rows), Type::kUInt8, peer, comm_, stream_));
  }

 private:
  static std::byte* At(const Tensor& tensor, int64_t row, int64_t rows) {
    return static_cast<std::byte*>(tensor.data) + row * (tensor.bytes / rows);
  }
  static size_t Size(const Tensor& tensor, int64_t rows) {
    return static_cast<size_t>(tensor.bytes / rows);
  }

  const Library& library_;
  const CommHandle comm_;
  void* const stream_;
  int failed_ = kSuccess;
};

// One tensor's part of the group.
void Add(const Library& nccl, Group* group, CommHandle comm, const OpSpec& spec, Seat seat,
         const Tensor& in, const Tensor& out, void* stream) {
  const auto bytes = static_cast<size_t>(in.bytes);
  const int root = static_cast<int>(spec.root);
  const Element& element = ElementOf(in.dtype);
  const size_t count = bytes / static_cast<size_t>(element.bytes);
  const Reduction op = ReductionOf(spec).value_or(Reduction::kSum);
  switch (spec.collective) {
    case Collective::kBcast:
      return group->Take(nccl.broadcast(in.data, out.data, bytes, Type::kUInt8, root, comm, stream));
    case Collective::kAllreduce:
      return group->Take(nccl.all_reduce(in.data, out.data, count, element.type, op, comm, stream));
    case Collective::kReduce:
      return group->Take(
          nccl.reduce(in.data, out.data, count, element.type, op, root, comm, stream));
    case Collective::kAllgather:
      return group->Take(nccl.all_gather(in.data, out.data, bytes, Type::kUInt8, comm, stream));
    case Collective::kReduceScatter:
      return group->Take(nccl.reduce_scatter(in.data, out.data,
                                             count / static_cast<size_t>(seat.ranks), element.type,
                                             op, comm, stream));
    case Collective::kGather:
      group->Send(in, 0, 1, root);
      for (int i = 0; seat.rank == root && i < seat.ranks; ++i) group->Receive(out, i, seat.ranks, i);
      return;
    case Collective::kScatter:
      for (int i = 0; seat.rank == root && i < seat.ranks; ++i) group->Send(in, i, seat.ranks, i);
      return group->Receive(out, 0, 1, root);
    case Collective::kAlltoall:
      for (int i = 0; i < seat.ranks; ++i) {
        group->Send(in, i, seat.ranks, i);
        group->Receive(out, i, seat.ranks, i);
      }
      return;
    case Collective::kSend: return group->Send(in, 0, 1, 1 - seat.rank);
    case Collective::kRecv: return group->Receive(out, 0, 1, 1 - seat.rank);
    default: {
      const Partners partners = PartnersOf(spec, seat);
      group->Send(in, 0, 1, partners.destination);
      return group->Receive(out, 0, 1, partners.source);
    }
  }
}

bool LeavesZeros(const OpSpec& spec, Seat seat) {
  switch (spec.collective) {
    case Collective::kReduce:
    case Collective::kGather: return seat.rank != spec.root;
    case Collective::kSendrecv:
    case Collective::kPermute: return PartnersOf(spec, seat).source < 0;
    default: return false;
  }
}

}  // namespace

Status CheckSupported(const OpSpec& spec, const std::vector<Tensor>& tensors) {
  const auto refused = [&](const std::string& why) {
    return Status(Code::kUnimplemented, spec.ToString() + ": " + why);
  };
  if (!HasCollective(spec.collective) || spec.codec != "raw" || spec.feedback || spec.referenced) {
    return refused("NCCL does not have it");
  }
  if (!Info(spec.collective).reduces) return Status::Ok();
  if (!ReductionOf(spec).has_value()) {
    return refused("NCCL reduces with sum, mean, prod, min and max");
  }
  for (const Tensor& t : tensors) {
    Status status = CheckReducible(t.dtype, spec.reduce_op, spec.mean);
    if (!status.ok()) return status;
    const bool complex = t.dtype == DType::kComplex64 || t.dtype == DType::kComplex128;
    if (!ElementOf(t.dtype).reduces || (complex && spec.reduce_op != ReduceOp::kSum)) {
      return refused("NCCL does not reduce " + std::string(Name(t.dtype)) + " this way");
    }
  }
  return Status::Ok();
}

Status Issue(const Library& library, CommHandle comm, const OpSpec& spec,
             Seat seat, const Call& call) {
  Group group(library, comm, call.stream);
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    Add(library, &group, comm, spec, seat, call.inputs[i], call.outputs[i], call.stream);
  }
  return group.End();
}

Status Complete(const Driver& driver, const OpSpec& spec, Seat seat, const Call& call) {
  const bool zeros = LeavesZeros(spec, seat);
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const Tensor& out = call.outputs[i];
    Status status;
    if (zeros) status = driver.Zero(out.data, out.bytes, call.stream);
    if (spec.collective == Collective::kSend) {
      status = driver.Copy(out.data, call.inputs[i].data, out.bytes, call.stream);
    }
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace jaxccomp::nccl
