// Matching of launches that ranks skip, repeat, interleave or abandon.
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
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

OpSpec Allreduce(int64_t count, const std::string& program = "jit_step") {
  OpSpec spec = SpecOf(Collective::kAllreduce, count);
  spec.program = program;
  return spec;
}

struct Visit {
  Array in, out;
  Pending pending;
};

void Enter(Team& team, Team::Program& program, int rank, size_t site, int64_t run_id, int32_t value,
           Visit* visit) {
  visit->in = Int32s({value, value + rank});
  visit->out = Array(DType::kInt32, 1, 2);
  visit->pending =
      team.Start(rank, program.At(rank, site), CallOf({&visit->in}, {&visit->out}, run_id));
}

Status Run(Team& team, Team::Program& program, int rank, size_t site, int64_t run_id,
           int32_t value) {
  Visit visit;
  Enter(team, program, rank, site, run_id, value, &visit);
  Status status = visit.pending.Get();
  const int32_t ranks = team.ranks;
  const std::vector<int32_t> sum = {ranks * value, ranks * value + ranks * (ranks - 1) / 2};
  if (status.ok()) CHECK(ValuesOf<int32_t>(visit.out) == sum);
  return status;
}

TEST(launches_of_one_process_match_in_any_order) {
  // Two launches of one program and one of another run at once. Devices begin them in different orders, as if several
  // Python threads launch.
  for (int ranks : {2, 3, 8}) {
    Team team(Style::kDevices, ranks);
    Team::Program first = team.Compile(std::vector<OpSpec>{Allreduce(2), Allreduce(2)});
    Team::Program second = team.Compile(std::vector<OpSpec>{Allreduce(2), Allreduce(2)});
    for (int round = 0; round < 20; ++round) {
      const int64_t run_id = 100 * round;
      team.OnRanks([&](int rank) {
        Visit visits[3][2];
        for (int i = 0; i < 3; ++i) {
          const int launch = (i + rank + round) % 3;
          Team::Program& program = launch == 2 ? second : first;
          for (size_t site : {0, 1}) {
            Enter(team, program, rank, site, run_id + launch, 10 * launch + round,
                  &visits[launch][site]);
          }
        }
        for (int launch = 0; launch < 3; ++launch) {
          for (Visit& visit : visits[launch]) {
            CHECK_OK(visit.pending.Get());
            CHECK_EQ(ValuesOf<int32_t>(visit.out)[0], ranks * (10 * launch + round));
          }
        }
      });
    }
  }
}

TEST(launches_work_after_a_failed_launch_of_the_process) {
  Team team(Style::kDevices, 4);
  team.SetOption("timeout_seconds", testing::ScaledSeconds(0.5));
  OpSpec ordered = Allreduce(2);
  ordered.ordered = true;
  Team::Program program = team.Compile(std::vector<OpSpec>{Allreduce(2), Allreduce(2), ordered});
  auto run_all = [&](int64_t run_id) {
    team.OnRanks([&](int rank) {
      for (size_t site : {0, 1, 2}) CHECK_OK(Run(team, program, rank, site, run_id, 7));
    });
  };
  run_all(1);
  for (int64_t run_id : {2, 3}) {
    team.OnRanks([&](int rank) {
      CHECK_OK(Run(team, program, rank, 0, run_id, 1));
      if (rank != 2) Contains(Run(team, program, rank, run_id - 1, run_id, 1), team.NameOf(2));
    });
    Contains(Run(team, program, 2, 1, run_id, 1), "another operation of this launch has failed");
  }
  run_all(4);
}

TEST(launches_end_with_an_error_if_a_callback_fails_on_a_device) {
  Team team(Style::kDevices, 3);
  Team::Program program = team.Compile(std::vector<OpSpec>{Allreduce(2), Allreduce(2)});
  const testing::Stopwatch watch;
  team.OnRanks([&](int rank) {
    CHECK_OK(Run(team, program, rank, 0, 1, 1));
    if (rank == 1) return team.EngineOf(0).CallbackFailed("OSError: bad batch");
    const Status status = Run(team, program, rank, 1, 1, 1);
    Contains(status, "OSError: bad batch");
    Contains(status, "waits for " + team.NameOf(1));
  });
  CHECK(watch.Seconds() < 10);
  team.OnRanks([&](int rank) {
    // Ending the stranded launch must not end a slow one.
    for (size_t site : {0, 1}) CHECK_OK(Run(team, program, rank, site, 2, 1));
  });
}

// Launches of ranks 0 and 1, by RunId, and the error of all ranks; "": none. No value of one launch reaches another.
void ComeApart(const std::vector<std::vector<int64_t>>& run_ids, const std::string& text) {
  Team team(Style::kProcesses, 2);
  Team::Program program = team.Compile(std::vector<OpSpec>{Allreduce(2)});
  team.OnRanks([&](int rank) {
    Status status;
    for (size_t i = 0; i < run_ids[rank].size() && status.ok(); ++i) {
      status = Run(team, program, rank, 0, run_ids[rank][i], static_cast<int32_t>(i));
    }
    if (text.empty()) return CHECK_OK(status), void();
    Contains(status, text);
    Contains(status, "jit_step");
    Contains(Run(team, program, rank, 0, 99, 1), "after an earlier error");
  });
}

TEST(launches_match_after_the_counters_are_reset) {
  // After that the gaps of a program's launches are unknown, and the ranks' counts need not agree.
  Team team(Style::kProcesses, 2);
  Team::Program first = team.Compile(std::vector<OpSpec>{Allreduce(2)});
  team.OnRanks([&](int rank) { CHECK_OK(Run(team, first, rank, 0, 1, 3)); });
  for (int i = 0; i < 4096; ++i) {
    Team::Program each =
        team.Compile(std::vector<OpSpec>{Allreduce(2, "jit_step" + std::to_string(i))});
    team.OnRanks([&](int rank) { CHECK_OK(Run(team, each, rank, 0, 1, i)); });
  }
  team.OnRanks([&](int rank) { CHECK_OK(Run(team, first, rank, 0, 2 + rank, 3)); });
}

TEST(launches_missing_on_one_rank_are_reported) {
  ComeApart({{1, 2, 3}, {1, 2, 4}}, "1 launch of it on rank 1 of 'world'");
  ComeApart({{1, 2, 7}, {1, 2, 4}}, "4 launches of it on rank 0 of 'world'");
  // Gap before the first common launch. Equal executables start at equal run ids.
  ComeApart({{1, 2, 3}, {2, 3, 4}}, "have not launched it equally often");
  // With constants that differ by rank, start ids differ.
  ComeApart({{1, 2, 3}, {100001, 100002, 100003}}, "");
  ComeApart({{1, 2, 3}, {100001, 100003, 100004}}, "1 launch of it on rank 1");
  // A condition, equal on all ranks, skipped the collectives; and run ids wrap around.
  ComeApart({{1, 5, 6}, {1, 5, 6}}, "");
  ComeApart({{2147483647, -2147483648, -2147483647}, {7000000, 7000001, 7000002}}, "");
  // Programs without parameters share a count with all other such programs of the process.
  const int64_t shared = 0x2f90404f;
  ComeApart({{shared, shared + 1, shared + 9}, {shared + 3, shared + 4, shared + 5}}, "");
}

TEST(launches_of_recompiled_programs_match) {
  // One rank has recompiled for a different shape, so its run ids start elsewhere.
  Team team(Style::kProcesses, 2);
  const std::vector<OpSpec> specs = {Allreduce(2)};
  Team::Program whole = team.Compile(specs), rest = team.Compile(specs);
  team.OnRanks([&](int rank) {
    int64_t run_id[2] = {10, 5000};
    for (int launch = 0; launch < 12; ++launch) {
      const bool last = rank == 1 && launch % 4 == 3;
      CHECK_OK(Run(team, last ? rest : whole, rank, 0, run_id[last]++, launch));
    }
  });
}

TEST(launches_of_different_programs_are_reported) {
  Team team(Style::kProcesses, 2);
  Team::Program train = team.Compile(std::vector<OpSpec>{Allreduce(2, "jit_train")});
  Team::Program evaluate = team.Compile(std::vector<OpSpec>{Allreduce(2, "jit_evaluate")});
  team.OnRanks([&](int rank) {
    CHECK_OK(Run(team, train, rank, 0, 1, 1));
    CHECK_OK(Run(team, evaluate, rank, 0, 1, 1));
    const Status status = Run(team, rank == 0 ? train : evaluate, rank, 0, 2, 1);
    Contains(status, "jit_train");
    Contains(status, "jit_evaluate");
  });
}

TEST(launches_abandoned_by_one_rank_are_reported) {
  // Rank 1 abandons its second launch between two collectives, and continues.
  for (int ranks : {2, 3}) {
    Team team(Style::kProcesses, ranks);
    Team::Program program = team.Compile(std::vector<OpSpec>{Allreduce(2), Allreduce(2)});
    const testing::Stopwatch watch;
    team.OnRanks([&](int rank) {
      for (size_t site : {0, 1}) CHECK_OK(Run(team, program, rank, site, 1, 1));
      CHECK_OK(Run(team, program, rank, 0, 2, 1));
      const Status status = rank == 1 ? Run(team, program, rank, 0, 3, 1)
                                      : Run(team, program, rank, 1, 2, 1);
      Contains(status, "rank 1 of 'world' left launch 2 before");
      Contains(status, "step.py:2");
    });
    CHECK(watch.Seconds() < 10);
  }
}

TEST(launches_that_overlap_in_two_threads_are_reported) {
  Team team(Style::kProcesses, 2);
  Team::Program program = team.Compile(std::vector<OpSpec>{Allreduce(2)});
  team.OnRanks([&](int rank) { CHECK_OK(Run(team, program, rank, 0, 1, 1)); });
  // Rank 0 launches twice from two threads before rank 1 enters the first launch.
  Visit visits[2];
  Enter(team, program, 0, 0, 2, 1, &visits[0]);
  Enter(team, program, 0, 0, 3, 1, &visits[1]);
  for (Visit& visit : visits) {
    const Status status = visit.pending.Get();
    Contains(status, "everal threads");
    Contains(status, "duplicate");
  }
  Contains(Run(team, program, 1, 0, 2, 1), "everal threads");
}

TEST(launches_of_several_threads_match_by_thread) {
  // Each thread has compiled its own program; ranks interleave them randomly.
  for (Style style : testing::kStyles) {
    Team team(style, 3);
    std::vector<Team::Program> programs;
    for (const char* thread : {"", "evaluate", "Thread-1 (run)"}) {
      OpSpec spec = Allreduce(2);
      spec.thread = thread;
      programs.push_back(team.Compile(std::vector<OpSpec>{spec, spec}));
    }
    team.OnRanks([&](int rank) {
      std::vector<std::thread> threads;
      for (size_t i = 0; i < programs.size(); ++i) {
        threads.emplace_back([&, i] {
          for (int launch = 1; launch <= 100; ++launch) {
            for (size_t site : {0, 1}) {
              CHECK_OK(Run(team, programs[i], rank, site, launch,
                           static_cast<int32_t>(1000 * i + launch)));
            }
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
  }
}

TEST(launches_at_different_source_locations_are_reported) {
  Team team(Style::kProcesses, 2);
  std::string places[2];
  for (int rank : {0, 1}) {
    team.EngineOf(rank).CheckLaunches([&places, rank] { return places[rank]; });
  }
  Team::Program program = team.Compile(std::vector<OpSpec>{Allreduce(2)});
  team.OnRanks([&](int rank) {
    for (int k = 0; k < 3; ++k) {
      places[rank] = "train.py:9 (k=" + std::to_string(k + (rank == 1 && k == 2)) + ")";
      const Status status = Run(team, program, rank, 0, k, 1);
      CHECK_EQ(status.ok(), k < 2);
      if (k < 2) continue;
      Contains(status, "train.py:9 (k=2)");
      Contains(status, "train.py:9 (k=3)");
    }
  });
}

}  // namespace
}  // namespace jaxccomp
