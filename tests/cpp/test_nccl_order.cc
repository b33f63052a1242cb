// NCCL's operations among the engine's: no order that programs can have stands still, and those that
// must not be are refused, or end in an error on all ranks.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "nccl_team.h"

namespace jaxccomp {
namespace {

using testing::FakeNccl;
using testing::FakeNcclSetting;
using testing::Int32s;
using testing::NcclTeam;
using testing::OnDevice;
using testing::Pending;
using testing::RankArrays;
using testing::Style;
using testing::ValuesOf;

OpSpec Sum(bool nccl, int line) {
  OpSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.nccl = nccl;
  spec.shapes = "int32[]";
  spec.site = line;
  spec.where = "step.py:" + std::to_string(line);
  return spec;
}

RankArrays Numbers(int64_t count, int first) {
  std::vector<int32_t> values(static_cast<size_t>(count), first);
  return {.inputs = {Int32s(values)},
          .outputs = {Int32s(std::vector<int32_t>(values.size(), -1))},
          .refs = {}};
}

struct Outcome {
  Status status;
  std::vector<RankArrays> arrays;
};

// One launch on every rank, until its streams are free again.
std::vector<Outcome> LaunchAll(NcclTeam& team, const NcclTeam::Program& program, int64_t run_id) {
  std::vector<Outcome> outcomes(static_cast<size_t>(team.on.team->ranks));
  team.on.team->OnRanks([&](int rank) {
    Outcome& own = outcomes[rank];
    for (size_t i = 0; i < program.by_rank[rank]->size(); ++i) {
      own.arrays.push_back(Numbers(5, rank + static_cast<int>(i)));
    }
    std::vector<std::unique_ptr<OnDevice>> held;
    std::vector<Pending> pending;
    own.status = team.Launch(rank, program, &own.arrays, run_id, &held, &pending);
    for (const Pending& p : pending) {
      if (Status status = p.Get(); own.status.ok()) own.status = status;
    }
    team.on.streams[rank]->Finish();
  });
  return outcomes;
}

void CheckSums(const std::vector<Outcome>& outcomes) {
  const int ranks = static_cast<int>(outcomes.size());
  for (const Outcome& outcome : outcomes) {
    CHECK_OK(outcome.status);
    for (size_t i = 0; i < outcome.arrays.size(); ++i) {
      const int expected = ranks * static_cast<int>(i) + ranks * (ranks - 1) / 2;
      for (int32_t v : ValuesOf<int32_t>(outcome.arrays[i].outputs[0])) {
        if (!CHECK_EQ(v, expected)) return;
      }
    }
  }
}

// Random programs of both backends, each launched several times, with launches queued behind each
// other and ranks that run ahead.
TEST(nccl_random_programs_mix_backends) {
  for (Style style : testing::kStyles) {
    for (int ranks : {2, 4}) {
      NcclTeam team(style, ranks);
      std::minstd_rand random(static_cast<uint32_t>(ranks) + 10 * static_cast<uint32_t>(style));
      constexpr int kPrograms = 40;
      std::vector<NcclTeam::Program> programs;
      for (int p = 0; p < kPrograms; ++p) {
        std::vector<OpSpec> specs;
        const int length = 1 + static_cast<int>(random() % 8);
        for (int i = 0; i < length; ++i) specs.push_back(Sum(random() % 2 == 0, 100 * p + i));
        programs.push_back(team.Compile(specs));
      }
      std::vector<int> order;
      for (int i = 0; i < 3 * kPrograms; ++i) order.push_back(static_cast<int>(random() % kPrograms));
      team.on.team->OnRanks([&](int rank) {
        std::vector<std::unique_ptr<OnDevice>> held;
        std::vector<Pending> pending;
        std::vector<std::unique_ptr<std::vector<RankArrays>>> launched;
        for (size_t n = 0; n < order.size(); ++n) {
          auto arrays = std::make_unique<std::vector<RankArrays>>();
          const auto& program = programs[static_cast<size_t>(order[n])];
          for (size_t i = 0; i < program.by_rank[rank]->size(); ++i) {
            arrays->push_back(Numbers(3 + static_cast<int64_t>(i) * 50, rank + static_cast<int>(i)));
          }
          CHECK_OK(team.Launch(rank, program, arrays.get(), static_cast<int64_t>(n) + 1, &held,
                               &pending));
          launched.push_back(std::move(arrays));
        }
        for (const Pending& p : pending) CHECK_OK(p.Get());
        team.on.streams[rank]->Finish();
        for (const auto& arrays : launched) {
          for (size_t i = 0; i < arrays->size(); ++i) {
            const int expected = ranks * static_cast<int>(i) + ranks * (ranks - 1) / 2;
            for (int32_t v : ValuesOf<int32_t>((*arrays)[i].outputs[0])) {
              if (!CHECK_EQ(v, expected)) return;
            }
          }
        }
      });
      for (const auto& program : programs) team.Forget(program);
      CHECK_EQ(FakeNccl::Get().Spinning(), 0);
    }
  }
}

// The same calls in another order on one rank: refused before anything is queued.
TEST(nccl_other_orders_are_refused) {
  for (bool nccl : {true, false}) {   // the other call is NCCL's too, or the engine's
    NcclTeam fresh(Style::kProcesses, 3);
    std::vector<std::vector<OpSpec>> specs(3, {Sum(true, 1), Sum(nccl, 2)});
    std::swap(specs[1][0], specs[1][1]);
    NcclTeam::Program program = fresh.Compile(specs);
    for (const Outcome& outcome : LaunchAll(fresh, program, 1)) {
      CHECK(outcome.status.message().find("another order") != std::string::npos);
    }
    CHECK_EQ(FakeNccl::Get().Spinning(), 0);
    fresh.Forget(program);
  }
}

// One rank calls the engine where the others call NCCL: the backend is part of what is compared.
TEST(nccl_the_backend_must_be_the_same) {
  NcclTeam team(Style::kProcesses, 2);
  NcclTeam::Program program =
      team.Compile(std::vector<std::vector<OpSpec>>{{Sum(true, 1)}, {Sum(false, 1)}});
  for (const Outcome& outcome : LaunchAll(team, program, 1)) {
    CHECK(outcome.status.message().find("backend=nccl") != std::string::npos);
  }
  team.Forget(program);
}

// What is not compared, since programs in program order differ: it stands still as it would on a GPU,
// until the deadline. Then all ranks have an error, and all streams go on.
TEST(nccl_bad_orders_end_at_the_deadline) {
  for (bool nccl : {true, false}) {
    NcclTeam team(Style::kProcesses, 2);
    // Of two communicators, each with an order of its own.
    for (int rank = 0; rank < 2; ++rank) {
      CHECK_OK(team.on.team->EngineOf(rank).AddCommunicator("other", {0, 1}));
    }
    std::vector<OpSpec> warm_specs = {Sum(true, 1), Sum(nccl, 2)};
    for (OpSpec& spec : warm_specs) spec.ordered = true;
    warm_specs[0].communicator = "world";
    warm_specs[1].communicator = "other";
    NcclTeam::Program good = team.Compile(warm_specs);
    CheckSums(LaunchAll(team, good, 1));
    team.on.team->SetOption("timeout_seconds", "0.5");
    std::vector<std::vector<OpSpec>> specs(2, warm_specs);
    std::swap(specs[1][0], specs[1][1]);
    NcclTeam::Program bad = team.Compile(specs);
    LaunchAll(team, bad, 2);   // returns: its streams have gone on
    int broken = 0;
    for (int rank = 0; rank < 2; ++rank) broken += !team.on.team->EngineOf(rank).FirstError().ok();
    CHECK_EQ(broken, 2);
    CHECK_EQ(FakeNccl::Get().Spinning(), 0);
    team.Forget(good);
    team.Forget(bad);
  }
}

// A rank that is lost, or ends, while others spin for it: they hear of it, their streams go on.
void StopOne(bool lost) {
  NcclTeam team(Style::kProcesses, 3);
  team.on.team->SetOption("timeout_seconds", "30");
  NcclTeam::Program program = team.Compile({Sum(true, 1)});
  CheckSums(LaunchAll(team, program, 1));
  const auto begun = std::chrono::steady_clock::now();
  team.on.team->OnRanks([&](int rank) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      // It has nothing under way, and tells only those who ask.
      team.on.team->hub().serves_at_end = std::chrono::seconds(4);
      if (lost) team.on.team->hub().Lose(1);
      else team.on.team->EngineOf(1).Shutdown();
      team.on.team->hub().serves_at_end = std::chrono::seconds(0);
      return;
    }
    std::vector<RankArrays> arrays;
    arrays.push_back(Numbers(5, rank));
    std::vector<std::unique_ptr<OnDevice>> held;
    std::vector<Pending> pending;
    CHECK_OK(team.Launch(rank, program, &arrays, 2, &held, &pending));
    team.on.streams[rank]->Finish();
    CHECK(!team.on.team->EngineOf(rank).FirstError().ok());
  });
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(15));
  team.Forget(program);
}

TEST(nccl_a_rank_that_is_lost) { StopOne(true); }
TEST(nccl_a_rank_that_ends) { StopOne(false); }

// NCCL finds an error by itself.
TEST(nccl_errors_of_its_own) {
  NcclTeam team(Style::kProcesses, 2);
  NcclTeam::Program program = team.Compile({Sum(true, 1)});
  CheckSums(LaunchAll(team, program, 1));
  FakeNccl::Get().Set(FakeNcclSetting::kFailAsyncAfter, 0);
  LaunchAll(team, program, 2);
  FakeNccl::Get().Set(FakeNcclSetting::kFailAsyncAfter, -1);
  // Who has queued its part before it hears of it is told afterwards.
  LaunchAll(team, program, 3);
  for (int rank = 0; rank < 2; ++rank) {
    const Status first = team.on.team->EngineOf(rank).FirstError();
    CHECK(first.message().find("remote") != std::string::npos);
  }
  team.Forget(program);
}

// All or none: one rank has no NCCL, another version, or fails to join.
TEST(nccl_ranks_decide_together) {
  FakeNccl& fake = FakeNccl::Get();
  nccl::Library::Get();   // the fake's, of a good version
  fake.Set(FakeNcclSetting::kVersion, 21400);
  const nccl::Library old;
  fake.Set(FakeNcclSetting::kVersion, 23005);
  const nccl::Library other;
  fake.Set(FakeNcclSetting::kVersion, 22707);
  CHECK_EQ(old.status().code(), Code::kUnavailable);
  CHECK(old.status().message().find("NCCL 2.14.0 is older than 2.18.0") != std::string::npos);
  const struct {
    const nccl::Library* library;
    std::string says;
  } cases[] = {{&old, "rank 1 of 'world' cannot use it: NCCL 2.14.0 is older"},
               {&other, "rank 0 of 'world' has 2.27.7 and rank 1 of 'world' has 2.30.5"}};
  for (const auto& c : cases) {
    NcclTeam team(Style::kProcesses, 3, {{1, c.library}});
    NcclTeam::Program program = team.Compile({Sum(true, 1)});
    for (const Outcome& outcome : LaunchAll(team, program, 1)) {
      CHECK(outcome.status.message().find(c.says) != std::string::npos);
    }
    // The engine goes on.
    NcclTeam::Program engine = team.Compile({Sum(false, 2)});
    CheckSums(LaunchAll(team, engine, 2));
    team.Forget(program);
    team.Forget(engine);
  }
  NcclTeam team(Style::kProcesses, 3);
  team.on.team->SetOption("timeout_seconds", "20");
  fake.Set(FakeNcclSetting::kFailInitOfRank, 2);
  NcclTeam::Program program = team.Compile({Sum(true, 1)});
  for (const Outcome& outcome : LaunchAll(team, program, 1)) {
    CHECK(outcome.status.message().find("NCCL: fake") != std::string::npos);
  }
  fake.Set(FakeNcclSetting::kFailInitOfRank, -1);
  team.Forget(program);
}

TEST(nccl_ranks_that_share_a_gpu) {
  FakeNccl& fake = FakeNccl::Get();
  unsetenv("NCCL_HOSTID");
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  fake.Set(FakeNcclSetting::kRanksPerGpu, 2);
  for (bool shares : {false, true}) {
    nccl::Backend::SetSharesGpus(shares);
    NcclTeam team(Style::kProcesses, 2);
    NcclTeam::Program program = team.Compile({Sum(true, 1)});
    CheckSums(LaunchAll(team, program, 1));
    CHECK_EQ(getenv("NCCL_HOSTID") != nullptr, shares);   // the fake is of 2.27
    team.Forget(program);
  }
  fake.Set(FakeNcclSetting::kRanksPerGpu, 1);
  unsetenv("NCCL_HOSTID");
  nccl::LetRanksShareGpus(23000, 3);
  CHECK_EQ(std::string(getenv("NCCL_MULTI_RANK_GPU_ENABLE")), "1");
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

}  // namespace
}  // namespace jaxccomp
