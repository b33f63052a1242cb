// A rank that stops or is reported as lost, and a communicator that is freed, before the program ends.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/membership.h"
#include "patience.h"
#include "team.h"

namespace jaxccomp {
namespace {

using testing::Array;
using testing::CallOf;
using testing::Contains;
using testing::Int32s;
using testing::Pending;
using testing::SpecOf;
using testing::Style;
using testing::Team;
using testing::ValuesOf;

constexpr int64_t kLarge = 30000;   // int32 values: pulled

struct Visit {
  Array in, out;
  Pending pending;
};

void Enter(Team& team, Team::Program& program, int rank, size_t site, int64_t run_id, Visit* visit) {
  const int64_t count = std::stoll(program.At(rank, site).spec.shapes.substr(6));
  visit->in = Int32s(std::vector<int32_t>(static_cast<size_t>(count), rank + 1));
  visit->out = Array(DType::kInt32, 1, count);
  visit->pending =
      team.Start(rank, program.At(rank, site), CallOf({&visit->in}, {&visit->out}, run_id));
}

Status Run(Team& team, Team::Program& program, int rank, size_t site, int64_t run_id) {
  Visit visit;
  Enter(team, program, rank, site, run_id, &visit);
  const Status status = visit.pending.Get();
  if (status.ok()) CHECK_EQ(ValuesOf<int32_t>(visit.out)[0], team.ranks * (team.ranks + 1) / 2);
  return status;
}

OpSpec Allreduce(int64_t count) { return SpecOf(Collective::kAllreduce, count); }

TEST(engine_names_a_rank_that_stops_after_it_entered) {
  constexpr int kStopped = 1;
  Team team(Style::kProcesses, 4);
  const double slowdown = testing::Slowdown();
  team.SetOption("timeout_seconds", testing::ScaledSeconds(1.6, slowdown));
  Team::Program program = team.Compile(std::vector<OpSpec>{Allreduce(3), Allreduce(kLarge)});
  team.OnRanks([&](int rank) { CHECK_OK(Run(team, program, rank, 0, 1)); });
  team.hub().holds_pulls = true;
  // The abort handler runs after the operations have failed: let their pulls end, so that their memory is released.
  for (int rank = 0; rank < 4; ++rank) {
    team.EngineOf(rank).SetAbortHandler([&](const std::string&) { team.hub().holds_pulls = false; },
                                        std::chrono::milliseconds(1100));
  }
  team.OnRanks([&](int rank) {
    Visit visit;
    Enter(team, program, rank, 1, 2, &visit);
    if (rank == kStopped) {
      // Stop after all ranks have announced the operation to each other.
      std::this_thread::sleep_for(testing::Scaled(std::chrono::milliseconds(500), slowdown));
      team.hub().stopped = kStopped;
    }
    const Status status = visit.pending.Get();
    if (rank == kStopped) return;
    Contains(status, "waits for " + team.NameOf(kStopped) + ", which reached this operation and then stopped answering");
  });
  team.hub().stopped = -1;
  team.hub().holds_pulls = false;
}

// Process `from` loses process `to`, and reports that; all engines read their messages.
void LoseOne(Team& team, int from, int to) {
  team.hub().MarkFailed(to, from);
  team.EngineOf(from).membership().FindFailed();
  for (int rank = 0; rank < team.ranks; ++rank) team.EngineOf(rank).membership().FindFailed();
}

TEST(engine_report_of_a_third_process_revokes_only_its_communicators) {
  Team team(Style::kProcesses, 4);
  OpSpec pair = Allreduce(3);
  pair.communicator = "pair";
  for (const int rank : {0, 1, 2, 3}) {
    Membership& membership = team.EngineOf(rank).membership();
    membership.LetGroupAgree();
    CHECK_OK(membership.AddCommunicator("pair", {0, 1}));
  }
  Team::Program program = team.Compile(std::vector<OpSpec>{pair, Allreduce(3)});
  LoseOne(team, 3, 2);
  CHECK(team.EngineOf(3).membership().FindFailed().contains(2));
  for (const int rank : {0, 1}) {
    Membership& membership = team.EngineOf(rank).membership();
    CHECK(membership.FindFailed().empty());   // a report proves nothing
    CHECK(membership.FindReported().contains(2));
    // Process 3 does not take part, so the report has to revoke the communicator.
    const Status status = Run(team, program, rank, 1, 1);
    CHECK(status.code() == Code::kAborted);
    Contains(status, "process 2 is lost");
    Contains(status, "comm.shrink()");
  }
  std::vector<Visit> visits(2);
  for (const int rank : {0, 1}) Enter(team, program, rank, 0, 1, &visits[rank]);
  for (const Visit& visit : visits) {
    CHECK_OK(visit.pending.Get());
    CHECK_EQ(ValuesOf<int32_t>(visit.out)[0], 3);
  }
  team.EngineOf(0).membership().ForgetReports();
  CHECK(team.EngineOf(0).membership().FindReported().empty());
}

TEST(engine_report_marks_a_process_as_failed_without_group_agreement) {
  Team team(Style::kProcesses, 4);
  LoseOne(team, 3, 2);
  for (const int rank : {0, 1}) {
    CHECK(team.EngineOf(rank).membership().FindFailed().contains(2));
    CHECK(team.EngineOf(rank).membership().FindReported().empty());
  }
}

TEST(engine_ignores_reports_of_a_failed_process) {
  for (const bool agrees : {false, true}) {
    Team team(Style::kProcesses, 4);
    for (const int rank : {0, 1, 2}) {
      Membership& membership = team.EngineOf(rank).membership();
      if (agrees) membership.LetGroupAgree();
      membership.SetFailed(3, "the group has dropped it");
      CHECK(team.hub().DisconnectedBy(rank) == std::vector<int>{3});
    }
    LoseOne(team, 3, 1);   // process 3 had been stopped, and missed the probes of the others
    for (const int rank : {0, 1, 2}) {
      Membership& membership = team.EngineOf(rank).membership();
      CHECK(!membership.FindFailed().contains(1));
      CHECK(membership.FindReported().empty());
    }
  }
}

// A process that resumes after a stop finds its deadlines passed and the replies unread.
TEST(engine_reads_messages_before_it_checks_deadlines) {
  constexpr double kTimeout = 0.3;
  std::atomic<bool> stops{false}, stopped{false}, continues{false};
  Team team(Style::kProcesses, 2, [&](int process) {
    if (process != 0 || !stops.exchange(false)) return;
    stopped = true;
    stopped.notify_all();
    continues.wait(false);
  });
  const double slowdown = testing::Slowdown();
  team.SetOption("timeout_seconds", testing::ScaledSeconds(kTimeout, slowdown));
  OpSpec spec = SpecOf(Collective::kBcast, 3, 1);
  Team::Program program = team.Compile(std::vector<OpSpec>{spec});
  Visit waiting, root;
  Enter(team, program, 0, 0, 1, &waiting);
  stops = true;
  stopped.wait(false);
  Enter(team, program, 1, 0, 1, &root);
  CHECK_OK(root.pending.Get());
  std::this_thread::sleep_for(
      testing::Scaled(std::chrono::milliseconds(static_cast<int>(2000 * kTimeout)), slowdown));
  continues = true;
  continues.notify_all();
  CHECK_OK(waiting.pending.Get());
  CHECK_EQ(ValuesOf<int32_t>(waiting.out)[0], 2);
}

TEST(engine_refuses_operations_on_a_freed_communicator) {
  Team team(Style::kProcesses, 3);
  for (const int rank : {0, 1, 2}) CHECK_OK(team.EngineOf(rank).membership().AddCommunicator("step", {0, 1, 2}));
  OpSpec spec = Allreduce(3);
  spec.communicator = "step";
  Team::Program program = team.Compile(std::vector<OpSpec>{spec, Allreduce(3)});
  Visit early;
  Enter(team, program, 0, 0, 1, &early);
  const Status busy = team.EngineOf(0).membership().FreeCommunicator("step");
  CHECK_EQ(busy.code(), Code::kFailedPrecondition);
  Contains(busy, "allreduce");
  Visit late[2];
  for (const int rank : {1, 2}) Enter(team, program, rank, 0, 1, &late[rank - 1]);
  for (const Visit& visit : late) CHECK_OK(visit.pending.Get());
  CHECK_OK(early.pending.Get());
  team.OnRanks([&](int rank) {
    CHECK_OK(team.EngineOf(rank).membership().FreeCommunicator("step"));
    CHECK_OK(team.EngineOf(rank).membership().FreeCommunicator("step"));   // the name no longer exists
    const Status status = Run(team, program, rank, 0, 2);
    CHECK(!status.ok());
    Contains(status, "'step'");
    CHECK_OK(Run(team, program, rank, 1, 2));   // other call sites still work
    // Call sites refer to the name, so it cannot be reused.
    const Status again = team.EngineOf(rank).membership().AddCommunicator("step", {0, 1, 2});
    CHECK_EQ(again.code(), Code::kInvalidArgument);
    Contains(again, "its name is not used again");
  });
}

TEST(engine_reports_a_communicator_that_one_rank_has_freed) {
  Team team(Style::kProcesses, 2);
  for (const int rank : {0, 1}) CHECK_OK(team.EngineOf(rank).membership().AddCommunicator("step", {0, 1}));
  OpSpec spec = Allreduce(3);
  spec.communicator = "step";
  Team::Program program = team.Compile(std::vector<OpSpec>{spec});
  team.OnRanks([&](int rank) { CHECK_OK(Run(team, program, rank, 0, 1)); });
  CHECK_OK(team.EngineOf(1).membership().FreeCommunicator("step"));
  const testing::Stopwatch watch;
  const Status status = Run(team, program, 0, 0, 2);
  Contains(status, "rank 1 of 'step' has freed the communicator");
  CHECK(watch.Seconds() < 10);
}

}  // namespace
}  // namespace jaxccomp
