// Who waits for an operation on a device: the thread that calls it, or the caller's stream
// (the option device_wait).
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "device_sums.h"
#include "device_team.h"

namespace jaxccomp {
namespace {

using testing::Allreduce;
using testing::DeviceKind;
using testing::DeviceTeam;
using testing::IsSum;
using testing::Numbers;
using testing::OnDevice;
using testing::RankArrays;
using testing::Style;
using testing::Team;
using Place = DeviceTeam::Place;
using std::chrono::milliseconds;

constexpr int64_t kCount = 20000;

// A call as the handler makes it.
Status RunOnDevice(DeviceTeam& on, int rank, CallSite& site, OnDevice& placed, int64_t run_id) {
  Call call = placed.call;
  call.device = on.team->DeviceOf(rank);
  call.run_id = run_id;
  return on.team->EngineOf(rank).RunOnDevice(site, std::move(call));
}

// What lies in the device's memory now, whatever its streams still have to do.
RankArrays ResultsNow(DeviceTeam& on, int rank, const OnDevice& placed, RankArrays arrays) {
  auto& bytes = arrays.outputs[0].bytes;
  const std::byte* const from = on.devices[rank]->memory.Shadow(placed.call.outputs[0].data);
  std::memcpy(bytes.data(), from, bytes.size());
  return arrays;
}

int64_t HeldStreams(const DeviceTeam& on) {
  int64_t held = 0;
  for (const auto& device : on.devices) held += device == nullptr ? 0 : device->held_streams();
  return held;
}

bool Has(const Status& status, const std::string& text) {
  return CHECK(status.message().find(text) != std::string::npos) ||
         CHECK_EQ(status.message(), text);
}

// "host": the results are there when the call returns, on whichever ranks the others are, and no stream
// stands at any time.
DEVICE_TEST(device_wait_host_returns_when_it_is_over) {
  for (Style style : testing::kStyles) {
    for (Place place : {Place::kDevice, Place::kMixed}) {
      DeviceTeam on(kind, style, 3, place);
      on.team->SetOption("device_wait", "host");
      Team::Program program = on.team->Compile({Allreduce(kCount), Allreduce(kCount, "lossless")});
      on.team->OnRanks([&](int rank) {
        for (int64_t run_id = 1; run_id <= 3; ++run_id) {
          for (size_t site = 0; site < 2; ++site) {
            RankArrays arrays = Numbers(kCount, rank);
            if (on.devices[rank] == nullptr) {
              CHECK_OK(on.Run(rank, program.At(rank, site), &arrays, run_id));
              IsSum(arrays, kCount, 3, 0);
              continue;
            }
            on.streams[rank]->Push([rank] { std::this_thread::sleep_for(milliseconds(3 * rank)); });
            OnDevice placed(on.devices[rank].get(), on.streams[rank].get(), &arrays);
            CHECK_OK(RunOnDevice(on, rank, program.At(rank, site), placed, run_id));
            IsSum(ResultsNow(on, rank, placed, arrays), kCount, 3, 0);
            placed.ReadResults();
          }
        }
      });
      CHECK_EQ(HeldStreams(on), 0);
    }
  }
}

// "stream": the call returns before anybody else has come, and the stream stands until they have.
DEVICE_TEST(device_wait_stream_returns_at_once) {
  DeviceTeam on(kind, Style::kProcesses, 2, Place::kDevice);
  on.team->SetOption("device_wait", "stream");
  Team::Program program = on.team->Compile({Allreduce(kCount)});
  std::vector<RankArrays> arrays = {Numbers(kCount, 0), Numbers(kCount, 1)};
  std::vector<std::unique_ptr<OnDevice>> held;
  std::atomic<bool> passed = false;
  for (int rank = 0; rank < 2; ++rank) {
    auto& placed = *held.emplace_back(std::make_unique<OnDevice>(
        on.devices[rank].get(), on.streams[rank].get(), &arrays[rank]));
    CHECK_OK(RunOnDevice(on, rank, program.At(rank, 0), placed, 1));
    placed.ReadResults();
    if (rank == 1) break;
    on.streams[0]->Push([&] { passed = true; });
    std::this_thread::sleep_for(milliseconds(30));
    CHECK(!passed);
  }
  for (auto& stream : on.streams) stream->Finish();
  for (int rank = 0; rank < 2; ++rank) IsSum(arrays[rank], kCount, 2, 0);
  // A GPU's streams are tried before.
  CHECK_EQ(HeldStreams(on), kind == DeviceKind::kCuda ? 4 : 2);
}

// The host waits no longer than the deadline, and hears who has not come.
DEVICE_TEST(device_wait_host_ends_at_the_deadline) {
  DeviceTeam on(kind, Style::kProcesses, 3, Place::kDevice);
  on.team->SetOption("timeout_seconds", "0.8");
  Team::Program program = on.team->Compile({Allreduce(kCount)});
  const auto begun = std::chrono::steady_clock::now();
  on.team->OnRanks([&](int rank) {
    if (rank == 2) return;
    RankArrays arrays = Numbers(kCount, rank);
    OnDevice placed(on.devices[rank].get(), on.streams[rank].get(), &arrays);
    Has(RunOnDevice(on, rank, program.At(rank, 0), placed, 1), "rank 2 of 'world'");
    placed.ReadResults();
    // The next call tells at once.
    CHECK(!RunOnDevice(on, rank, program.At(rank, 0), placed, 2).ok());
  });
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(20));
  for (auto& stream : on.streams) stream->Finish();
  CHECK_EQ(HeldStreams(on), 0);
}

DEVICE_TEST(device_wait_host_hears_of_failures) {
  for (Style style : testing::kStyles) {
    for (const int when : {1, 3}) {
      DeviceTeam on(kind, style, 2, Place::kDevice);
      on.team->SetOption("timeout_seconds", "30");
      Team::Program program = on.team->Compile({Allreduce(kCount)});
      on.devices[0]->faults.computation = when;
      std::vector<Status> told(2);
      on.team->OnRanks([&](int rank) {
        RankArrays arrays = Numbers(kCount, rank);
        OnDevice placed(on.devices[rank].get(), on.streams[rank].get(), &arrays);
        told[rank] = RunOnDevice(on, rank, program.At(rank, 0), placed, 1);
        placed.ReadResults();
      });
      if (on.devices[0]->faults.computation > 0) continue;   // it has no so many
      Has(told[0], "injected");
      Has(on.team->EngineOf(1).FirstError(), "injected");
    }
  }
}

// A call that waits ends with the engine.
DEVICE_TEST(device_wait_host_ends_at_shutdown) {
  DeviceTeam on(kind, Style::kProcesses, 2, Place::kDevice);
  on.team->SetOption("timeout_seconds", "30");
  Team::Program program = on.team->Compile({Allreduce(kCount)});
  RankArrays arrays = Numbers(kCount, 0);
  OnDevice placed(on.devices[0].get(), on.streams[0].get(), &arrays);
  Status told;
  std::thread caller([&] { told = RunOnDevice(on, 0, program.At(0, 0), placed, 1); });
  std::this_thread::sleep_for(milliseconds(30));
  on.team->OnRanks([&](int rank) { on.team->EngineOf(rank).Shutdown(); });
  caller.join();
  CHECK(!told.ok());
  placed.ReadResults();
}

}  // namespace
}  // namespace jaxccomp
