// NCCL's operations on communicators that belong to somebody else, as XLA's do: programs are compared as
// ever, nothing is made, and nothing is aborted.
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "nccl_team.h"

namespace jaxccomp {
namespace {

using testing::FakeNccl;
using testing::Int32s;
using testing::NcclTeam;
using testing::OnDevice;
using testing::Pending;
using testing::RankArrays;
using testing::Style;
using testing::ValuesOf;

OpSpec Sum(int line) {
  OpSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.nccl = spec.xla_communicator = true;
  spec.shapes = "int32[]";
  spec.site = line;
  spec.where = "step.py:" + std::to_string(line);
  return spec;
}

// Somebody else's, by rank.
class Others {
 public:
  explicit Others(int ranks) : by_rank(static_cast<size_t>(ranks)) {
    nccl::UniqueId id;
    nccl_.get_unique_id(&id);
    nccl::Config config;
    config.blocking = 0;
    for (int i = 0; i < ranks; ++i) {
      nccl_.comm_init_rank_config(&by_rank[i], ranks, id, i, &config);
    }
    for (nccl::CommHandle each : by_rank) {
      int state = 0;
      nccl_.comm_get_async_error(each, &state);
    }
  }
  ~Others() {
    for (nccl::CommHandle each : by_rank) {
      if (each != nullptr) nccl_.comm_destroy(each);
    }
  }
  Others(const Others&) = delete;
  Others& operator=(const Others&) = delete;

  void Abort(int rank) { nccl_.comm_abort(std::exchange(by_rank[static_cast<size_t>(rank)], nullptr)); }

  std::vector<nccl::CommHandle> by_rank;

 private:
  const nccl::Library& nccl_ = nccl::Library::Get();
};

struct Launched {
  Status status;
  std::vector<RankArrays> arrays;
  std::vector<std::unique_ptr<OnDevice>> held;
  std::vector<Pending> pending;
};

void LaunchOn(NcclTeam& team, const NcclTeam::Program& program, int rank, int64_t run_id,
              nccl::CommHandle handle, Launched* own) {
  for (size_t i = 0; i < program.by_rank[rank]->size(); ++i) {
    own->arrays.push_back({.inputs = {Int32s({rank + 1, 5})}, .outputs = {Int32s({-1, -1})}, .refs = {}});
  }
  own->status = team.Launch(rank, program, &own->arrays, run_id, &own->held, &own->pending, handle);
}

std::vector<Launched> LaunchAll(NcclTeam& team, const NcclTeam::Program& program, int64_t run_id,
                                const std::vector<nccl::CommHandle>& handle) {
  std::vector<Launched> all(handle.size());
  team.on.team->OnRanks([&](int rank) {
    LaunchOn(team, program, rank, run_id, handle[static_cast<size_t>(rank)], &all[rank]);
    team.on.streams[rank]->Finish();
  });
  return all;
}

TEST(nccl_of_xla_communicators_are_used) {
  NcclTeam team(Style::kDevices, 3);
  const NcclTeam::Program program = team.Compile({Sum(1), Sum(2)});
  const Others others(3), later(3);
  const int64_t made = FakeNccl::Get().Made();
  for (int64_t run_id = 1; run_id <= 4; ++run_id) {
    for (const Launched& each : LaunchAll(team, program, run_id, (run_id < 3 ? others : later).by_rank)) {
      CHECK_OK(each.status);
      for (const RankArrays& a : each.arrays) {
        CHECK(ValuesOf<int32_t>(a.outputs[0]) == std::vector<int32_t>({6, 15}));
      }
    }
  }
  CHECK_EQ(FakeNccl::Get().Made(), made);
  team.Forget(program);
}

TEST(nccl_of_xla_communicators_must_have_the_rank) {
  NcclTeam team(Style::kDevices, 2);
  const NcclTeam::Program program = team.Compile({Sum(1)});
  Others others(2);
  std::swap(others.by_rank[0], others.by_rank[1]);
  for (const Launched& each : LaunchAll(team, program, 1, others.by_rank)) {
    CHECK(each.status.message().find("XLA's communicator has this rank as") != std::string::npos);
  }
  CHECK_EQ(FakeNccl::Get().Spinning(), 0);
  team.Forget(program);
}

// Programs in which one rank has XLA's communicator and the other does not, or that differ otherwise.
TEST(nccl_of_xla_is_part_of_what_is_compared) {
  CHECK(Sum(1).Signature() != [] {
    OpSpec own = Sum(1);
    own.xla_communicator = false;
    return own.Signature();
  }());
  CHECK(Sum(1).ToString().find("backend=nccl, communicator=xla") != std::string::npos);
  OpSpec named = Sum(1);
  named.communicator = "world";
  CHECK_EQ(nccl::NcclCallSite::Make(named).status().code(), Code::kInvalidArgument);
}

// A rank does not come. The error is told at the deadline, and what spins is left to its owner.
TEST(nccl_of_xla_communicators_are_not_aborted) {
  NcclTeam team(Style::kDevices, 2);
  const NcclTeam::Program program = team.Compile({Sum(1)});
  Others others(2);
  for (const Launched& each : LaunchAll(team, program, 1, others.by_rank)) CHECK_OK(each.status);
  team.on.team->SetOption("timeout_seconds", "0.3");
  const int64_t aborted = FakeNccl::Get().Aborted();
  Launched alone;
  LaunchOn(team, program, 0, 2, others.by_rank[0], &alone);
  CHECK_OK(alone.status);
  Engine& engine = team.on.team->EngineOf(0);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (engine.FirstError().ok() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK_EQ(engine.FirstError().code(), Code::kDeadlineExceeded);
  CHECK(engine.FirstError().message().find("jaxccomp does not abort it") != std::string::npos);
  CHECK_EQ(FakeNccl::Get().Aborted(), aborted);
  CHECK_EQ(FakeNccl::Get().Spinning(), 1);
  // Later operations are refused at once.
  Launched refused;
  LaunchOn(team, program, 0, 3, others.by_rank[0], &refused);
  CHECK(refused.status.message().find("after an earlier error") != std::string::npos);
  others.Abort(0);   // as XLA does
  team.on.streams[0]->Finish();
  CHECK_EQ(FakeNccl::Get().Spinning(), 0);
  team.Forget(program);
}

}  // namespace
}  // namespace jaxccomp
