// A codec that a device has to prepare: before its first operation, while nothing stands still there.
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "device_sums.h"
#include "device_team.h"
#include "fake_cuda_nvcomp.h"

namespace jaxccomp {
namespace {

using testing::DeviceKind;
using testing::DeviceTeam;
using testing::HostNvcomp;
using testing::IsSum;
using testing::Numbers;
using testing::OnDevice;
using testing::Pending;
using testing::RankArrays;
using testing::Style;
using testing::Team;
using Place = DeviceTeam::Place;

constexpr int64_t kCount = 5003;

OpSpec Operation(int number) {
  OpSpec spec = testing::Allreduce(kCount, "lossless");
  spec.where = "step.py:" + std::to_string(number);
  return spec;
}

// Those of `by_nvcomp` are coded by nvCOMP.
Team::Program Compile(DeviceTeam& on, int ranks, int operations, const char* codec,
                      const std::vector<int>& by_nvcomp) {
  std::vector<OpSpec> specs;
  for (int i = 0; i < operations; ++i) specs.push_back(Operation(i));
  Team::Program program = on.team->Compile(specs);
  for (int rank = 0; rank < ranks; ++rank) {
    for (int i : by_nvcomp) program.At(rank, i).codec = HostNvcomp(codec);
  }
  return program;
}

// Others are under way when it is first used, and more follow at once. The fake devices check that no
// call is entered while they prepare.
DEVICE_TEST(device_prepares_codecs_behind_what_is_under_way) {
  constexpr int kRanks = 3, kOperations = 9;
  for (const char* codec : {"nvcomp.ans", "nvcomp.zstd"}) {
    for (Style style : testing::kStyles) {
      for (Place place : {Place::kDevice, Place::kMixed}) {
        DeviceTeam on(kind, style, kRanks, place);
        on.team->SetOption("timeout_seconds", "60");
        Team::Program program = Compile(on, kRanks, kOperations, codec, {4, 6, 7});
        on.team->OnRanks([&](int rank) {
          std::vector<RankArrays> arrays;
          arrays.reserve(kOperations);
          std::vector<std::unique_ptr<OnDevice>> held;
          std::vector<Pending> pending;
          for (int i = 0; i < kOperations; ++i) {
            arrays.push_back(Numbers(kCount, rank + i));
            pending.push_back(on.Start(rank, program.At(rank, i), &arrays.back(), 1, &held));
          }
          for (const Pending& p : pending) CHECK_OK(p.Get());
          on.streams[rank]->Finish();
          for (int i = 0; i < kOperations; ++i) CHECK(IsSum(arrays[i], kCount, kRanks, i));
        });
        for (const auto& device : on.devices) {
          if (device != nullptr) CHECK_EQ(device->preparations(), 1);
        }
      }
    }
  }
}

DEVICE_TEST(device_that_cannot_prepare_a_codec_tells_all_ranks) {
  constexpr int kRanks = 2;
  DeviceTeam on(kind, Style::kProcesses, kRanks, Place::kDevice);
  on.team->SetOption("timeout_seconds", "30");
  Team::Program program = Compile(on, kRanks, 2, "nvcomp.ans", {1});
  on.devices[1]->faults.preparation = 1;
  // Both ranks have ended it before one fails: a failure ends all that is under way.
  on.team->OnRanks([&](int rank) {
    RankArrays plain = Numbers(kCount, rank);
    CHECK_OK(on.Run(rank, program.At(rank, 0), &plain, 1));
  });
  on.team->OnRanks([&](int rank) {
    RankArrays coded = Numbers(kCount, rank);
    const Status status = on.Run(rank, program.At(rank, 1), &coded, 1);
    CHECK(!status.ok());
    for (const char* part : {"step.py:1", "codec 'nvcomp.ans' cannot be used on",
                             "injected: nvCOMP is missing"}) {
      if (status.message().find(part) == std::string::npos) CHECK_EQ(status.message(), part);
    }
  });
}

// What is under way never ends by itself: its deadline ends it, and the wait for it.
DEVICE_TEST(device_preparation_does_not_wait_for_ever) {
  DeviceTeam on(kind, Style::kProcesses, 2, Place::kDevice);
  on.team->SetOption("timeout_seconds", "0.5");
  Team::Program program = Compile(on, 2, 2, "nvcomp.ans", {1});
  RankArrays alone = Numbers(kCount, 0), coded = Numbers(kCount, 0);
  std::vector<std::unique_ptr<OnDevice>> held;
  const auto begun = std::chrono::steady_clock::now();
  const Pending first = on.Start(0, program.At(0, 0), &alone, 1, &held);
  const Pending second = on.Start(0, program.At(0, 1), &coded, 1, &held);
  CHECK(!first.Get().ok());
  CHECK(!second.Get().ok());
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(20));
  on.streams[0]->Finish();
}

}  // namespace
}  // namespace jaxccomp
