// Allreduce `hierarchical` on devices that several ranks share.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "device_exercises.h"
#include "device_sums.h"
#include "device_team.h"

namespace jaxccomp {
namespace {

using testing::Allreduce;
using testing::Compare;
using testing::DeviceKind;
using testing::DeviceTeam;
using testing::Exercise;
using testing::IsSum;
using testing::Numbers;
using testing::Of;
using testing::RankArrays;
using testing::Style;
using testing::Team;
using Place = DeviceTeam::Place;

struct Placed {
  std::vector<int> hosts, gpus;
};
const std::vector<Placed> kPlacements = {
    {{0, 0, 0, 0}, {3, 3, 5, 5}},                            // 4 on 2 GPUs
    {{0, 0, 0, 0, 1, 1, 1, 1}, {0, 1, 0, 1, 2, 2, 3, 3}},    // 2 x 2 x 2
    {{0, 0, 0, 0, 0, 0}, {0, 0, 0, 1, 2, 2}},                // 3 + 1 + 2
    {{0, 0, 0}, {0, 0, 0}},                                  // one for all
};

// ---- Values ------------------------------------------------------------------------------

std::vector<Exercise> Exercises(int ranks) {
  std::vector<Exercise> exercises;
  for (const char* algorithm : {"hierarchical:level=gpu", "hierarchical:level=host", "auto"}) {
    for (const char* codec : {"raw", "bf16|lossless", "int8"}) {
      Exercise e = Of(Collective::kAllreduce, ranks, codec, 60011);
      e.spec.algorithm = algorithm;
      exercises.push_back(e);
      e.in_place = true;
      exercises.push_back(e);
      e.in_place = false;
      e.spec.reduce_op = ReduceOp::kMax;
      exercises.push_back(e);
      e.spec.reduce_op = ReduceOp::kSum;
      e.leaves.erase(e.leaves.begin() + 1);   // what has a mean
      e.spec.mean = true;
      exercises.push_back(e);
      e.spec.feedback = true;
      exercises.push_back(e);
    }
  }
  return exercises;
}

// The same bits on the host and on devices, with device IPC and without.
DEVICE_TEST(groups_have_the_values_of_the_host) {
  for (const auto& [hosts, gpus] : testing::SomeOf(kPlacements)) {
    const auto place = [&](DeviceTeam& on) { on.SetPlacement(hosts, gpus); };
    const int ranks = static_cast<int>(gpus.size());
    for (Style style : testing::StylesOf(kind)) {
      if (style == Style::kDevices && ranks > 6) continue;
      const int64_t ipc_bytes =
          Compare(kind, style, ranks, 64 << 10, Exercises(ranks), 1000, 64 << 20, place);
      CHECK(ipc_bytes > 1000000);
    }
    Compare(kind, Style::kProcesses, ranks, 64 << 10, Exercises(ranks), 0, 0, place);
  }
}

// ---- Who sends what to whom --------------------------------------------------------------

struct Traffic {
  std::map<std::pair<int, int>, int64_t> bytes;   // by sender and receiver
  int64_t sent_bytes = 0, ipc_bytes = 0;
};

// Of one allreduce of `count` numbers.
Traffic TrafficOf(DeviceTeam& on, const std::string& algorithm, int64_t count) {
  OpSpec spec = Allreduce(count);
  spec.algorithm = algorithm;
  Team::Program program = on.team->Compile({spec});
  for (int rank = 0; rank < on.team->ranks; ++rank) on.team->EngineOf(rank).StartTrace();
  on.team->OnRanks([&](int rank) {
    RankArrays arrays = Numbers(count, rank);
    CHECK_OK(on.Run(rank, program.At(rank, 0), &arrays, 1));
    IsSum(arrays, count, on.team->ranks, 0);
  });
  Traffic traffic;
  for (int rank = 0; rank < on.team->ranks; ++rank) {
    for (const TraceEvent& event : on.team->EngineOf(rank).StopTrace()) {
      if (event.kind == TaskKind::kSend) traffic.bytes[{rank, event.peer}] += event.bytes;
    }
    const CollectiveStats stats =
        on.team->EngineOf(rank).GetStats()[static_cast<size_t>(Collective::kAllreduce)];
    traffic.sent_bytes += stats.sent_bytes;
    traffic.ipc_bytes += stats.ipc_bytes;
  }
  on.CheckAllReturned();
  return traffic;
}

// Ranks of a GPU export to each other all that they send; what leaves it is from its leader, to leaders.
DEVICE_TEST(groups_send_by_their_leaders) {
  constexpr int64_t kCount = 3 << 18, kBytes = kCount * 4;
  for (const auto& [hosts, gpus] : kPlacements) {
    for (const char* algorithm : {"auto", "hierarchical:level=gpu"}) {
      const auto ranks = static_cast<int64_t>(gpus.size());
      std::map<int, int> leaders;
      for (int rank = 0; rank < ranks; ++rank) leaders.try_emplace(gpus[rank], rank);
      const auto count = static_cast<int64_t>(leaders.size());
      const bool automatic = algorithm == std::string("auto");
      // Of one GPU nothing has to be spared; of several hosts the links between these are.
      if (automatic && (count == 1 || hosts.back() > 0)) continue;
      DeviceTeam on(kind, Style::kProcesses, static_cast<int>(ranks), Place::kDevice);
      on.SetPlacement(hosts, gpus, /*between_gpus=*/false);
      on.Share(1);
      const Traffic traffic = TrafficOf(on, algorithm, kCount);
      for (const auto& [pair, bytes] : traffic.bytes) {
        const auto [from, to] = pair;
        const int own = leaders[gpus[from]], theirs = leaders[gpus[to]];
        if (own == theirs) {
          CHECK(from == own || to == own);
          CHECK_EQ(bytes, kBytes);
        } else {
          CHECK(from == own && to == theirs);
          CHECK_EQ(bytes, 2 * kBytes / count);
        }
      }
      CHECK_EQ(traffic.ipc_bytes, 2 * kBytes * (ranks - count));
      CHECK_EQ(traffic.sent_bytes, 2 * kBytes * (ranks - 1));
    }
  }
}

// All ranks decide alike, from what all have opened.
DEVICE_TEST(groups_without_ipc_are_not_chosen) {
  for (bool broken : {false, true}) {
    DeviceTeam on(kind, Style::kProcesses, 4, Place::kDevice);
    on.SetPlacement({0, 0, 0, 0}, {1, 1, 2, 2});
    on.team->SetOption("device_ipc_bytes", broken ? "1" : "0");
    on.team->SetOption("device_ipc_memory_bytes", std::to_string(64 << 20));
    on.Join([&](std::vector<std::string>* offers) {
      if (broken) (*offers)[3][40] ^= 1;
    });
    const Traffic traffic = TrafficOf(on, "auto", 1 << 19);
    CHECK_EQ(traffic.bytes.size(), 12);   // two_shot: everyone to everyone
  }
}

// A process with several GPUs: where its tensors lie is not known before the call.
TEST(groups_of_processes_with_several_gpus) {
  DeviceTeam on(DeviceKind::kFake, Style::kProcesses, 3, Place::kDevice);
  for (int rank = 0; rank < 3; ++rank) {
    on.team->EngineOf(rank).SetGpus({{0, 0, 7}, {1, 0, 7}, {2, 0, 7}, {2, 1, 8}});
  }
  on.Share(1);
  const Traffic traffic = TrafficOf(on, "hierarchical:level=gpu", 3 << 18);
  // Roots 0 and 2; the last one is by itself.
  CHECK_EQ(traffic.bytes.size(), 4);
  CHECK((traffic.bytes.contains({0, 2}) && traffic.bytes.contains({1, 0})));
}

// A leader merges from where the others have their values, at once, and packs the result once for all:
// two computations, however many share its GPU. The others pack theirs, and copy the result.
TEST(groups_merge_in_place) {
  constexpr int kRanks = 4;
  DeviceTeam on(DeviceKind::kFake, Style::kProcesses, kRanks, Place::kDevice);
  on.SetPlacement({0, 0, 0, 0}, {0, 0, 0, 0});
  on.Share(1);
  TrafficOf(on, "hierarchical:level=gpu", 4096);
  for (int rank = 0; rank < kRanks; ++rank) CHECK_EQ(on.devices[rank]->computations(), 2);
}

// Tensors that do not follow each other without a gap are copied before they are merged.
TEST(groups_merge_what_lies_otherwise) {
  const auto place = [&](DeviceTeam& on) { on.SetPlacement({0, 0, 0, 0}, {0, 0, 1, 1}); };
  std::vector<Exercise> exercises;
  for (int64_t count : {16, 17, 1003}) {
    Exercise e = Of(Collective::kAllreduce, 4, "raw", count);
    e.spec.algorithm = "hierarchical:level=gpu";
    exercises.push_back(e);
  }
  CHECK(Compare(DeviceKind::kFake, Style::kProcesses, 4, 64 << 10, exercises, 1, 64 << 20, place) > 0);
}

}  // namespace
}  // namespace jaxccomp
