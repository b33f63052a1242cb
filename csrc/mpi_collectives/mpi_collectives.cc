#include "mpi_collectives/mpi_collectives.h"

#include <memory>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mpi_collectives/reductions.h"

namespace jaxccomp {
namespace {

// The offsets of contiguous blocks.
std::vector<int> BeginsOf(const std::vector<int>& counts) {
  std::vector<int> begins(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), 0);
  return begins;
}

}  // namespace

Result<std::unique_ptr<MpiCollectives>> MpiCollectives::Create(const MpiCollectivesConfig& config) {
  Result<const MpiLibrary*> mpi = MpiLibrary::Load();
  if (!mpi.ok()) return mpi.status();
  std::unique_ptr<MpiCollectives> made(new MpiCollectives(*mpi, config));
  if (Status opened = made->Open(); !opened.ok()) return opened;
  return made;
}

Status MpiCollectives::Open() {
  std::string missing;
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_reference_t<decltype(*function)>>(mpi_.FindFunction(name));
    if (*function == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  find("MPI_Comm_group", &f_.comm_group);
  find("MPI_Group_incl", &f_.group_incl);
  find("MPI_Group_free", &f_.group_free);
  find("MPI_Comm_create_group", &f_.comm_create_group);
  find("MPI_Comm_set_errhandler", &f_.comm_set_errhandler);
  find("MPI_Op_create", &f_.op_create);
  find("MPI_Ibcast", &f_.ibcast);
  find("MPI_Iallreduce", &f_.iallreduce);
  find("MPI_Ireduce", &f_.ireduce);
  find("MPI_Ireduce_scatter_block", &f_.ireduce_scatter_block);
  find("MPI_Iallgather", &f_.iallgather);
  find("MPI_Igather", &f_.igather);
  find("MPI_Iscatter", &f_.iscatter);
  find("MPI_Ialltoall", &f_.ialltoall);
  find("MPI_Iscan", &f_.iscan);
  find("MPI_Iexscan", &f_.iexscan);
  find("MPI_Ireduce_scatter", &f_.ireduce_scatter);
  find("MPI_Iallgatherv", &f_.iallgatherv);
  find("MPI_Igatherv", &f_.igatherv);
  find("MPI_Iscatterv", &f_.iscatterv);
  find("MPI_Ialltoallv", &f_.ialltoallv);
  if (!missing.empty()) {
    return {Code::kUnavailable, "the MPI of " + mpi_.path() + " has no " + missing +
                                    ", which backend=\"mpi\" needs: use one of MPI 3 or newer"};
  }
  if (const int error = f_.comm_group(config_.comm, &world_group_)) return Error("MPI_Comm_group", error);
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      const MpiReduction own = FindReduction(static_cast<DType>(dtype), static_cast<ReduceOp>(op));
      if (own == nullptr) continue;
      constexpr int kCommutes = 1;
      if (const int error = f_.op_create(own, kCommutes, &own_ops_[dtype][op])) {
        return Error("MPI_Op_create", error);
      }
    }
  }
  return Status::Ok();
}

Status MpiCollectives::Error(const std::string& call, int error) const {
  return {Code::kUnavailable, call +" failed: " + mpi_.ErrorText(error)};
}

Result<CollectiveLibrary::Communicator> MpiCollectives::MakeCommunicator(
    const std::vector<int>& processes, uint64_t id) {
  MpiHandle group = 0, comm = 0;
  const auto count = static_cast<int>(processes.size());
  if (const int error = f_.group_incl(world_group_, count, processes.data(), &group)) {
    return Error("MPI_Group_incl", error);
  }
  // Each communicator has its own tag, so that several can be created at a time. Tags repeat after tag_ub
  // communicators.
  const auto tag = static_cast<int>(id % static_cast<uint64_t>(config_.tag_ub));
  const int error = f_.comm_create_group(config_.comm, group, tag, &comm);
  f_.group_free(&group);
  if (error != 0) return Error("MPI_Comm_create_group", error);
  if (const int set = f_.comm_set_errhandler(comm, config_.errors_return)) {
    return Error("MPI_Comm_set_errhandler", set);
  }
  return comm;
}

MpiHandle MpiCollectives::OpFor(DType dtype, ReduceOp op) const {
  // A bool is a byte of 0 or 1: min is AND, max is OR.
  if (dtype == DType::kBool && op == ReduceOp::kMin) op = ReduceOp::kAnd;
  if (dtype == DType::kBool && op == ReduceOp::kMax) op = ReduceOp::kOr;
  const MpiHandle own = own_ops_[static_cast<size_t>(dtype)][static_cast<size_t>(op)];
  return own != 0 ? own : config_.ops[static_cast<size_t>(op)];
}

int MpiCollectives::Call(Communicator comm, const LibraryCall& call, const Blocks* blocks,
                         MpiHandle* request) const {
  const MpiHandle type = config_.types[static_cast<size_t>(call.dtype)];
  const MpiHandle op = OpFor(call.dtype, call.reduce_op);
  const auto count = static_cast<int>(call.count);
  int rank = 0;
  if (const int error = mpi_.CommRank(comm, &rank)) return error;
  // MPI forbids aliased buffers: pass MPI_IN_PLACE. On ranks that only send or only receive, MPI ignores the other
  // buffer.
  const void* const in = call.in == call.out && rank == call.root
                             ? reinterpret_cast<const void*>(config_.in_place)
                             : call.in;
  const void* const in_everywhere =
      call.in == call.out ? reinterpret_cast<const void*>(config_.in_place) : call.in;
  switch (call.collective) {
    case Collective::kBcast: {
      // The const_cast is safe: MPI only reads the root's buffer.
      void* const values = rank == call.root ? const_cast<void*>(call.in) : call.out;
      return f_.ibcast(values, count, type, call.root, comm, request);
    }
    case Collective::kAllreduce:
      return f_.iallreduce(in_everywhere, call.out, count, type, op, comm, request);
    case Collective::kReduce:
      return f_.ireduce(in, call.out, count, type, op, call.root, comm, request);
    case Collective::kReduceScatter:
      return f_.ireduce_scatter_block(call.in, call.out, count, type, op, comm, request);
    case Collective::kAllgather:
      return f_.iallgather(call.in, count, type, call.out, count, type, comm, request);
    case Collective::kGather:
      return f_.igather(call.in, count, type, call.out, count, type, call.root, comm, request);
    case Collective::kScatter:
      return f_.iscatter(call.in, count, type, call.out, count, type, call.root, comm, request);
    case Collective::kAlltoall:
      return f_.ialltoall(call.in, count, type, call.out, count, type, comm, request);
    case Collective::kScan:
      return f_.iscan(in_everywhere, call.out, count, type, op, comm, request);
    case Collective::kExscan:
      return f_.iexscan(in_everywhere, call.out, count, type, op, comm, request);
    case Collective::kReduceScatterv:
      return f_.ireduce_scatter(call.in, call.out, blocks->gives.data(), type, op, comm, request);
    case Collective::kAllgatherv:
      return f_.iallgatherv(call.in, blocks->gives[0], type, call.out, blocks->takes.data(),
                            blocks->takes_at.data(), type, comm, request);
    case Collective::kGatherv:
      return f_.igatherv(call.in, blocks->gives[0], type, call.out, blocks->takes.data(),
                         blocks->takes_at.data(), type, call.root, comm, request);
    case Collective::kScatterv:
      return f_.iscatterv(call.in, blocks->gives.data(), blocks->gives_at.data(), type, call.out,
                          blocks->takes[0], type, call.root, comm, request);
    case Collective::kAlltoallv:
      return f_.ialltoallv(call.in, blocks->gives.data(), blocks->gives_at.data(), type, call.out,
                           blocks->takes.data(), blocks->takes_at.data(), type, comm, request);
    default: return mpi_.Ibarrier(comm, request);
  }
}

void MpiCollectives::Start(Communicator communicator, const LibraryCall& call, Completion* done) {
  MpiHandle request = 0;
  std::unique_ptr<const Blocks> blocks;
  if (!call.gives.empty()) {
    blocks = std::make_unique<const Blocks>(
        Blocks{call.gives, BeginsOf(call.gives), call.takes, BeginsOf(call.takes)});
  }
  if (const int error = Call(communicator, call, blocks.get(), &request)) {
    return done->Done(Error("MPI's " + std::string(Info(call.collective).name), error));
  }
  running_.push_back({{.handle = request}, done, call.collective, std::move(blocks)});
}

bool MpiCollectives::Poll() {
  MpiBatch batch;
  batch.AddList(&running_, &next_);
  if (!batch.Test(mpi_)) return false;
  TakeCompleted(&running_, [&](const Running& ended) {
    if (ended.request.error == 0) return ended.done->Done(Status::Ok());
    ended.done->Done(
        Error("MPI's " + std::string(Info(ended.collective).name), ended.request.error));
  });
  return true;
}

void MpiCollectives::Quiesce(const Status& why) {
  for (Running& running : std::exchange(running_, {})) {
    static_cast<void>(running.blocks.release());   // leaked on purpose: MPI may still read them
    running.done->Done(why);
  }
}

}  // namespace jaxccomp
