// What must hold whichever way messages between devices take: each runs on a team that has been told the
// way.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "device_sums.h"
#include "device_team.h"

namespace jaxccomp::testing {

// 12 allreduces, all under way at once, in 3 runs.
inline void RunManyAtOnce(DeviceTeam& on, int64_t count) {
  constexpr int kOperations = 12;
  const int ranks = on.team->ranks;
  std::vector<OpSpec> specs;
  for (int i = 0; i < kOperations; ++i) {
    specs.push_back(Allreduce(count + i, i % 2 == 0 ? "raw" : "lossless"));
  }
  Team::Program program = on.team->Compile(specs);
  std::vector<std::vector<RankArrays>> arrays(static_cast<size_t>(ranks));
  for (int run = 1; run <= 3; ++run) {
    on.team->OnRanks([&](int rank) {
      std::vector<std::unique_ptr<OnDevice>> held;
      std::vector<Pending> pending;
      arrays[rank].clear();
      arrays[rank].reserve(kOperations);
      for (int i = 0; i < kOperations; ++i) {
        arrays[rank].push_back(Numbers(count + i, rank + i));
        pending.push_back(on.Start(rank, program.At(rank, i), &arrays[rank][i], run, &held));
      }
      for (const Pending& p : pending) CHECK_OK(p.Get());
      on.streams[rank]->Finish();
      for (int i = 0; i < kOperations; ++i) IsSum(arrays[rank][i], count + i, ranks, i);
    });
  }
}

// Of a chain of 3 ranks the one in the middle, whose stream comes late, passes on codes that it is sent,
// all the same.
inline void PassOnLate(DeviceTeam& on, int64_t count) {
  OpSpec bcast;
  bcast.collective = Collective::kBcast;
  bcast.root = 0;
  bcast.algorithm = "chain";
  bcast.codec = "lossless";
  Team::Program program = on.team->Compile({bcast});
  std::atomic<bool> last_has_it = false, meanwhile = false;
  on.team->OnRanks([&](int rank) {
    RankArrays arrays = Numbers(count, rank);
    if (rank == 1) {
      on.streams[1]->Push([&] {
        for (int i = 0; i < 20000 && !last_has_it; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        meanwhile = last_has_it.load();
      });
    }
    CHECK_OK(on.Run(rank, program.At(rank, 0), &arrays, 1));
    if (rank == 2) last_has_it = true;
    CHECK(arrays.outputs == Numbers(count, 0).inputs);
  });
  CHECK(meanwhile.load());
}

// Two allreduces while rank 1's device fails for the `when`-th time that it could: when it comes to that,
// some rank is told, and all ranks hear of it from what they start next, and from the query. Whether it
// came to it.
inline bool FailOnce(DeviceTeam& on, int64_t count, std::atomic<int> Faults::*what, int when) {
  const int ranks = on.team->ranks;
  std::atomic<int>& fault = on.devices[1].get()->faults.*what;
  Team::Program program = on.team->Compile({Allreduce(count), Allreduce(count, "lossless")});
  fault = when;
  std::vector<Status> told(static_cast<size_t>(ranks));
  on.team->OnRanks([&](int rank) {
    for (int site = 0; site < 2 && told[rank].ok(); ++site) {
      RankArrays arrays = Numbers(count, rank);
      told[rank] = on.Run(rank, program.At(rank, site), &arrays, 1);
      if (told[rank].ok()) IsSum(arrays, count, ranks, 0);
    }
  });
  const bool reached = fault == 0;
  bool any = false;
  for (const Status& status : told) any |= !status.ok();
  CHECK_EQ(any, reached);
  if (!any) return false;
  on.team->OnRanks([&](int rank) {
    RankArrays arrays = Numbers(count, rank);
    Status last;
    for (int site = 0; site < 2 && last.ok(); ++site) {
      last = on.Run(rank, program.At(rank, site), &arrays, 2);
    }
    CHECK(!last.ok());
    CHECK(!on.team->EngineOf(rank).FirstError().ok());
  });
  return true;
}

struct CountAndCodec {
  int64_t count;
  std::string codec = "raw";
};

// Shutdown of 3 ranks while their allreduces are under way, at different moments: all end, also those for
// which the last rank never comes. `prepare` is done to each team.
template <typename F>
void ShutDownInFlight(DeviceKind kind, Style style, int64_t chunk_bytes,
                      const std::vector<CountAndCodec>& calls, F prepare) {
  const auto count = static_cast<int>(calls.size());
  std::vector<OpSpec> specs;
  for (const CountAndCodec& each : calls) specs.push_back(Allreduce(each.count, each.codec));
  for (int when = 0; when < 6; ++when) {
    DeviceTeam on(kind, style, 3, DeviceTeam::Place::kMixed);
    on.team->SetOption("chunk_bytes", std::to_string(chunk_bytes));
    on.team->SetOption("timeout_seconds", "30");
    prepare(on);
    Team::Program program = on.team->Compile(specs);
    std::vector<std::vector<RankArrays>> arrays(3);
    std::vector<std::unique_ptr<OnDevice>> held[3];
    std::vector<Pending> pending[3];
    for (int rank = 0; rank < 3; ++rank) {
      for (const CountAndCodec& each : calls) arrays[rank].push_back(Numbers(each.count, rank));
      for (int i = 0; i < count; ++i) {
        if (rank == 2 && i > when % count) continue;
        pending[rank].push_back(
            on.Start(rank, program.At(rank, i), &arrays[rank][i], 1, &held[rank]));
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(when * 400));
    on.team->OnRanks([&](int rank) { on.team->EngineOf(rank).Shutdown(); });
    for (int rank = 0; rank < 3; ++rank) {
      for (const Pending& p : pending[rank]) static_cast<void>(p.Get());
      on.streams[rank]->Finish();
    }
  }
}

}  // namespace jaxccomp::testing
