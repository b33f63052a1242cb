// Ranks that run ahead of others: unexpected messages are bounded, awaited messages still arrive, and a slow rank is
// not reported as stopped.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "patience.h"
#include "team.h"

namespace jaxccomp {
namespace {

using std::chrono::milliseconds;
using testing::Array;
using testing::CallOf;
using testing::Int32s;
using testing::Pending;
using testing::SpecOf;
using testing::Style;
using testing::Team;
using testing::ValuesOf;

struct Visit {
  Array in, out;
  Pending pending;
};

void Enter(Team& team, Team::Program& program, int rank, size_t site, int64_t launch, int32_t value,
           Visit* visit, int64_t count) {
  visit->in = Int32s(std::vector<int32_t>(static_cast<size_t>(count), value));
  visit->out = Array(DType::kInt32, 1, count);
  visit->pending = team.Start(rank, program.At(rank, site),
                              CallOf({&visit->in}, {&visit->out}, launch));
}

// A message of a bcast of 200 int32 is 800 bytes.
constexpr int64_t kCount = 200;

// Checks that no credit is in use. Waits, because the hub also counts messages of the engines' threads.
void CheckNoneEarly(Team& team) {
  for (int i = 0; i < 2000 && team.hub().CountEarly() != 0; ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  CHECK_EQ(team.hub().CountEarly(), 0);
}

TEST(engine_root_may_run_ahead_within_its_credit) {
  for (int64_t credit : {0, 1, 7}) {
    for (Collective collective : {Collective::kBcast, Collective::kReduce}) {
      const int ranks = 3, launches = 150;
      Team team(Style::kProcesses, ranks);
      team.hub().early_messages = credit;
      OpSpec spec = SpecOf(collective, kCount, 0);
      spec.ordered = true;   // launches do not overlap; operations in program order may
      Team::Program program = team.Compile(std::vector<OpSpec>{spec});
      team.OnRanks([&](int rank) {
        // Ranks that only send start all launches at once. Receivers wait for each launch, and then a little longer.
        const bool waits = (rank == 0) == (collective == Collective::kReduce);
        std::deque<Visit> visits;
        for (int launch = 1; launch <= launches; ++launch) {
          visits.emplace_back();
          Enter(team, program, rank, 0, launch, launch + rank, &visits.back(), kCount);
          if (!waits) continue;
          if (!CHECK_OK(visits.back().pending.Get())) return;
          if (launch % 16 == 0) std::this_thread::sleep_for(milliseconds(1));
        }
        for (int launch = 1; launch <= launches; ++launch) {
          Visit& visit = visits[static_cast<size_t>(launch - 1)];
          CHECK_OK(visit.pending.Get());
          if (!waits) continue;
          const int32_t expected =
              collective == Collective::kBcast ? launch : 3 * launch + 1 + 2;
          CHECK_EQ(ValuesOf<int32_t>(visit.out)[7], expected);
        }
      });
      CHECK(team.hub().MaxEarly() <= credit);
      CheckNoneEarly(team);
    }
  }
}

// A rank with late peers encodes at most the amount that may wait for them.
TEST(engine_temporary_memory_stays_within_its_bound) {
  constexpr int64_t kChunkBytes = 4 << 10, kValues = 64 * kChunkBytes / 4;
  for (Collective collective : {Collective::kBcast, Collective::kReduce, Collective::kAllreduce}) {
    Team team(Style::kProcesses, 2);
    team.SetOption("chunk_bytes", std::to_string(kChunkBytes));
    OpSpec spec = SpecOf(collective, kValues, collective == Collective::kAllreduce ? -1 : 0);
    spec.codec = "lossless";
    Team::Program program = team.Compile(std::vector<OpSpec>{spec});
    Visit visits[2];
    for (int rank : {0, 1}) {
      Enter(team, program, rank, 0, 1, 0x12345678, &visits[rank], kValues);
      for (int i = 0; rank == 0 && i < 100 && !visits[0].pending.IsOver(); ++i) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
    for (int rank : {0, 1}) {
      CHECK_OK(visits[rank].pending.Get());
      const Stats all = team.EngineOf(rank).measurements().GetStats();
      const CollectiveStats& stats = all[static_cast<size_t>(collective)];
      CHECK(stats.peak_bytes > 0);
      if (!CHECK(stats.peak_bytes <= stats.bound_bytes)) {
        std::fprintf(stderr, "rank %d held %d of %d bytes\n", rank, static_cast<int>(stats.peak_bytes),
                     static_cast<int>(stats.bound_bytes));
      }
    }
  }
}

TEST(engine_backlog_of_one_communicator_does_not_block_others) {
  for (int64_t credit : {0, 1, 5}) {
    const int ranks = 3;
    Team team(Style::kProcesses, ranks);
    team.hub().early_messages = credit;
    OpSpec first = SpecOf(Collective::kBcast, kCount, 0);
    first.ordered = true;
    OpSpec second = first;
    first.communicator = "first";
    second.communicator = "second";
    for (int rank = 0; rank < ranks; ++rank) {
      CHECK_OK(team.EngineOf(rank).membership().AddCommunicator("first", {0, 1, 2}));
      CHECK_OK(team.EngineOf(rank).membership().AddCommunicator("second", {2, 1, 0}));
    }
    second.root = 2;   // also on process 0
    Team::Program one = team.Compile(std::vector<OpSpec>{first});
    Team::Program other = team.Compile(std::vector<OpSpec>{second});
    const int launches = 40;
    team.OnRanks([&](int rank) {
      auto warm_up = [&](Team::Program& program) {   // the first run compares programs
        Visit visit;
        Enter(team, program, rank, 0, team.NextRunId(), 5, &visit, kCount);
        CHECK_OK(visit.pending.Get());
      };
      warm_up(one), warm_up(other);
      std::deque<Visit> backlog(launches);
      Visit crossing;
      auto enter_backlog = [&] {
        for (int i = 0; i < launches; ++i) {
          Enter(team, one, rank, 0, 1000000 + i, i, &backlog[static_cast<size_t>(i)], kCount);
        }
      };
      if (rank == 0) enter_backlog();
      Enter(team, other, rank, 0, 2000000, 99, &crossing, kCount);
      // The other ranks need this before they have entered any of the backlog.
      CHECK_OK(crossing.pending.Get());
      CHECK_EQ(ValuesOf<int32_t>(crossing.out)[3], 99);
      if (rank != 0) enter_backlog();
      for (int i = 0; i < launches; ++i) {
        CHECK_OK(backlog[static_cast<size_t>(i)].pending.Get());
        CHECK_EQ(ValuesOf<int32_t>(backlog[static_cast<size_t>(i)].out)[3], i);
      }
    });
    CheckNoneEarly(team);
  }
}

TEST(engine_backlog_of_one_launch_completes_in_any_order) {
  // The root enters the call sites in one order; the other ranks enter them one at a time in the opposite order.
  for (int64_t credit : {0, 1, 5}) {
    const int ranks = 4;
    const size_t sites = 24;
    Team team(Style::kProcesses, ranks);
    team.hub().early_messages = credit;
    team.SetOption("chunk_bytes", "512");
    std::vector<OpSpec> specs;
    for (size_t i = 0; i < sites; ++i) {
      specs.push_back(SpecOf(Collective::kBcast, i % 5 == 4 ? 2000 : kCount, 0));
    }
    Team::Program program = team.Compile(specs);
    team.OnRanks([&](int rank) {
      for (int launch = 1; launch <= 4; ++launch) {
        std::deque<Visit> visits(sites);
        auto enter = [&](size_t site) {
          const int64_t count = site % 5 == 4 ? 2000 : kCount;
          Enter(team, program, rank, site, launch, static_cast<int32_t>(site + 100 * launch),
                &visits[site], count);
        };
        if (rank == 0) {
          for (size_t site = 0; site < sites; ++site) enter(site);
          for (Visit& visit : visits) CHECK_OK(visit.pending.Get());
          continue;
        }
        for (size_t site = sites; site-- > 0;) {
          enter(site);
          if (!CHECK_OK(visits[site].pending.Get())) return;
          CHECK_EQ(ValuesOf<int32_t>(visits[site].out).back(),
                   static_cast<int32_t>(site + 100 * launch));
        }
      }
    });
    CheckNoneEarly(team);
  }
}

TEST(engine_backlog_without_receives_ends_with_an_error) {
  const int ranks = 2;
  Team team(Style::kProcesses, ranks);
  team.hub().early_messages = 2;
  team.SetOption("timeout_seconds", testing::ScaledSeconds(1));
  Team::Program program = team.Compile(std::vector<OpSpec>{
      SpecOf(Collective::kBcast, kCount, 0), SpecOf(Collective::kAllreduce, kCount)});
  std::deque<Visit> visits(20);
  team.OnRanks([&](int rank) {
    Visit visit;
    for (size_t site : {0, 1}) {
      Enter(team, program, rank, site, 1, 1, &visit, kCount);
      CHECK_OK(visit.pending.Get());
    }
  });
  for (int i = 0; i < 20; ++i) Enter(team, program, 0, 0, 10 + i, i, &visits[i], kCount);
  team.EngineOf(1).Shutdown();
  Visit last;
  Enter(team, program, 0, 1, 29, 1, &last, kCount);
  CHECK(!last.pending.Get().ok());
  for (Visit& visit : visits) static_cast<void>(visit.pending.Get());   // any status
}

// Rank 1 enters one launch after the other, each well within the deadline, but all together take much longer than it.
void GoesOnSlowly(Style style, Collective collective) {
  const int ranks = 3, launches = 10;
  Team team(style, ranks);
  if (style == Style::kProcesses) team.hub().early_messages = 1;
  const double slowdown = testing::Slowdown();
  team.SetOption("timeout_seconds", testing::ScaledSeconds(1.2, slowdown));
  OpSpec spec = SpecOf(collective, kCount, collective == Collective::kBcast ? 0 : -1);
  spec.ordered = true;   // launches do not overlap; operations in program order may
  Team::Program program = team.Compile(std::vector<OpSpec>{spec});
  team.OnRanks([&](int rank) {
    std::deque<Visit> visits;
    for (int launch = 1; launch <= launches; ++launch) {
      visits.emplace_back();
      if (rank == 1) std::this_thread::sleep_for(testing::Scaled(milliseconds(300), slowdown));
      Enter(team, program, rank, 0, launch, launch, &visits.back(), kCount);
      if (rank == 1) CHECK_OK(visits.back().pending.Get());
    }
    for (Visit& visit : visits) CHECK_OK(visit.pending.Get());
  });
}

TEST(engine_waits_for_a_slow_rank_that_makes_progress) {
  std::vector<std::thread> threads;   // run concurrently: each mostly waits
  for (Style style : testing::kStyles) {
    for (Collective collective : {Collective::kAllreduce, Collective::kBcast}) {
      threads.emplace_back(GoesOnSlowly, style, collective);
    }
  }
  for (std::thread& thread : threads) thread.join();
}

// The slow rank stops in the middle.
TEST(engine_reports_a_slow_rank_that_stops) {
  for (Style style : testing::kStyles) {
    const int ranks = 3, launches = 12, comes_to = 6;
    Team team(style, ranks);
    const double slowdown = testing::Slowdown();
    team.SetOption("timeout_seconds", testing::ScaledSeconds(1.2, slowdown));
    OpSpec spec = SpecOf(Collective::kAllreduce, kCount);
    spec.ordered = true;
    Team::Program program = team.Compile(std::vector<OpSpec>{spec});
    std::atomic<std::chrono::steady_clock::time_point> stopped{};
    team.OnRanks([&](int rank) {
      std::deque<Visit> visits;
      for (int launch = 1; launch <= (rank == 1 ? comes_to : launches); ++launch) {
        visits.emplace_back();
        if (rank == 1) std::this_thread::sleep_for(testing::Scaled(milliseconds(300), slowdown));
        Enter(team, program, rank, 0, launch, launch, &visits.back(), kCount);
        if (rank == 1) CHECK_OK(visits.back().pending.Get());
      }
      if (rank == 1) {
        stopped = std::chrono::steady_clock::now();
        return;
      }
      for (int launch = 1; launch <= launches; ++launch) {
        const Status status = visits[static_cast<size_t>(launch - 1)].pending.Get();
        CHECK_EQ(status.ok(), launch <= comes_to);
        if (status.ok()) continue;
        CHECK(status.message().find("waits for " + team.NameOf(1)) != std::string::npos);
        CHECK(status.message().find("They did not come") != std::string::npos);
      }
      const std::chrono::duration<double> took =
          std::chrono::steady_clock::now() - stopped.load();
      CHECK(took.count() > 0.5 && took.count() < 10 * testing::Slowdown());
    });
  }
}

}  // namespace
}  // namespace jaxccomp
