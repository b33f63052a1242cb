// Operations on devices among others and among themselves: order, concurrency, and what goes wrong.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "device_sums.h"
#include "device_team.h"
#include "device_trials.h"

namespace jaxccomp {
namespace {

using testing::Allreduce;
using testing::DeviceKind;
using testing::DeviceTeam;
using testing::FailOnce;
using testing::Faults;
using testing::Int32s;
using testing::IsSum;
using testing::Numbers;
using testing::OnDevice;
using testing::Pending;
using testing::RankArrays;
using testing::ShutDownInFlight;
using testing::Style;
using testing::Team;
using Place = DeviceTeam::Place;
using std::chrono::milliseconds;

constexpr int64_t kLarge = 60000;

// All of one program are under way at once, queued on one stream per rank in its order: each waits in
// its stream for the one before, and the engine may not let it wait in the device's own streams.
DEVICE_TEST(device_queue_runs_ahead) {
  for (Style style : testing::kStyles) {
    for (Place place : {Place::kDevice, Place::kMixed}) {
      constexpr int kOperations = 12, kRanks = 3;
      DeviceTeam on(kind, style, kRanks, place);
      std::vector<OpSpec> specs;
      for (int i = 0; i < kOperations; ++i) specs.push_back(Allreduce(i % 3 == 0 ? 5 : kLarge + i));
      Team::Program program = on.team->Compile(specs);
      std::vector<std::vector<RankArrays>> arrays(kRanks);
      on.team->OnRanks([&](int rank) {
        std::vector<std::unique_ptr<OnDevice>> held;
        std::vector<Pending> pending;
        arrays[rank].reserve(kOperations);
        for (int i = 0; i < kOperations; ++i) {
          const int64_t count = i % 3 == 0 ? 5 : kLarge + i;
          arrays[rank].push_back(Numbers(count, rank + i));
          pending.push_back(
              on.Start(rank, program.At(rank, i), &arrays[rank][i], 1, &held));
        }
        for (const Pending& p : pending) CHECK_OK(p.Get());
        on.streams[rank]->Finish();
        for (int i = 0; i < kOperations; ++i) {
          IsSum(arrays[rank][i], i % 3 == 0 ? 5 : kLarge + i, kRanks, i);
        }
      });
    }
  }
}

// A caller's stream that comes late, and one that comes later than the deadline of those who wait.
DEVICE_TEST(device_event_fires_late) {
  for (Style style : testing::kStyles) {
    DeviceTeam on(kind, style, 3, Place::kDevice);
    on.team->SetOption("timeout_seconds", "30");
    Team::Program program = on.team->Compile({Allreduce(kLarge)});
    std::atomic<bool> came = false;
    on.team->OnRanks([&](int rank) {
      RankArrays arrays = Numbers(kLarge, rank);
      if (rank == 1) {
        on.streams[rank]->Push([&] {
          std::this_thread::sleep_for(milliseconds(300));
          came = true;
        });
      }
      CHECK_OK(on.Run(rank, program.At(rank, 0), &arrays, 1));
      CHECK(came.load());
      IsSum(arrays, kLarge, 3, 0);
    });
  }
}

DEVICE_TEST(device_barrier_waits_for_streams) {
  for (Style style : testing::kStyles) {
    for (Place place : {Place::kDevice, Place::kMixed}) {
      DeviceTeam on(kind, style, 3, place);
      OpSpec barrier;
      barrier.collective = Collective::kBarrier;
      Team::Program program = on.team->Compile({barrier});
      std::atomic<bool> came = false;
      on.team->OnRanks([&](int rank) {
        RankArrays none;
        if (rank == 1) {
          on.streams[rank]->Push([&] {
            std::this_thread::sleep_for(milliseconds(100));
            came = true;
          });
        }
        CHECK_OK(on.Run(rank, program.At(rank, 0), &none, 1));
        CHECK(came.load());
      });
    }
  }
}

DEVICE_TEST(device_injected_failures) {
  int failed = 0;
  for (Style style : testing::kStyles) {
    for (Place place : {Place::kDevice, Place::kMixed}) {
      const auto fail = [&](std::atomic<int> Faults::*what, int when) {
        DeviceTeam on(kind, style, 3, place);
        on.team->SetOption("chunk_bytes", "16384");
        on.team->SetOption("timeout_seconds", "30");
        failed += FailOnce(on, 20011, what, when);
      };
      for (int when : {1, 2, 3, 7, 15, 40}) {
        fail(&Faults::computation, when);
        fail(&Faults::values_allocation, when);
        fail(&Faults::codes_allocation, when);
      }
      for (int when : {1, 2}) {
        fail(&Faults::enter, when);
        fail(&Faults::ready, when);
      }
    }
  }
  CHECK(failed > 40);
}

// The caller hears by the next operation alone: no callback.
DEVICE_TEST(device_failure_without_callback) {
  DeviceTeam on(kind, Style::kDevices, 2, Place::kDevice);
  Team::Program program = on.team->Compile({Allreduce(1000)});
  on.devices[0]->faults.computation = 1;
  std::vector<RankArrays> arrays = {Numbers(1000, 0), Numbers(1000, 1)};
  std::vector<std::unique_ptr<OnDevice>> placed;
  Engine& engine = on.team->EngineOf(0);
  for (int rank = 0; rank < 2; ++rank) {
    placed.push_back(std::make_unique<OnDevice>(on.devices[rank].get(), on.streams[rank].get(),
                                                &arrays[rank]));
    Call call = placed.back()->call;
    call.device = on.team->DeviceOf(rank);
    call.run_id = 1;
    CHECK(!engine.Start(program.At(rank, 0), std::move(call), nullptr).has_value());
    placed.back()->ReadResults();
  }
  for (auto& stream : on.streams) stream->Finish();
  CHECK(engine.FirstError().message().find("injected") != std::string::npos);
}

// A computation that is under way when its operation fails keeps the operation's memory, and the
// caller's stream, until it is over.
DEVICE_TEST(device_failure_waits_for_what_runs) {
  for (Style style : testing::kStyles) {
    DeviceTeam on(kind, style, 2, Place::kDevice);
    on.team->SetOption("timeout_seconds", "30");
    Team::Program program = on.team->Compile({Allreduce(kLarge)});
    std::vector<RankArrays> arrays = {Numbers(kLarge, 0), Numbers(kLarge, 1)};
    std::vector<std::unique_ptr<OnDevice>> held;
    on.devices[0]->Hold(true);
    const Pending first = on.Start(0, program.At(0, 0), &arrays[0], 1, &held);
    std::atomic<bool> passed = false;
    on.streams[0]->Push([&] { passed = true; });
    // The other rank's fails when both have begun.
    on.devices[1]->Hold(true);
    on.devices[1]->faults.computation = 1;
    const Pending second = on.Start(1, program.At(1, 0), &arrays[1], 1, &held);
    for (auto& device : on.devices) {
      for (int i = 0; i < 20000 && device->computations() == 0; ++i) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
    on.devices[1]->Hold(false);
    CHECK(!second.Get().ok());
    std::this_thread::sleep_for(milliseconds(30));
    CHECK(!passed.load());
    CHECK(!first.IsOver());
    on.devices[0]->Hold(false);
    CHECK(!first.Get().ok());
    on.streams[0]->Finish();
    CHECK(passed.load());
  }
}

DEVICE_TEST(device_lost_peer_and_deadline) {
  for (bool lost : {true, false}) {
    DeviceTeam on(kind, Style::kProcesses, 3, Place::kDevice);
    on.team->SetOption("timeout_seconds", lost ? "60" : "1");
    Team::Program program = on.team->Compile({Allreduce(kLarge)});
    std::vector<RankArrays> arrays = {Numbers(kLarge, 0), Numbers(kLarge, 1)};
    std::vector<std::unique_ptr<OnDevice>> held;
    std::vector<Pending> pending;
    for (int rank = 0; rank < 2; ++rank) {
      pending.push_back(on.Start(rank, program.At(rank, 0), &arrays[rank], 1, &held));
    }
    std::this_thread::sleep_for(milliseconds(50));
    if (lost) on.team->hub().Lose(2);
    for (int rank = 0; rank < 2; ++rank) {
      const Status status = pending[rank].Get();
      CHECK(!status.ok());
      const char* const name = lost ? "process 2 is lost" : "rank 2 of 'world'";
      if (status.message().find(name) == std::string::npos) CHECK_EQ(status.message(), name);
      on.streams[rank]->Finish();
    }
  }
}

DEVICE_TEST(device_shutdown_in_flight) {
  for (Style style : testing::kStyles) {
    ShutDownInFlight(kind, style, 16384, {{kLarge}, {kLarge + 1}, {5}}, [](DeviceTeam&) {});
  }
}

// A device that has stopped: the operation fails at its deadline and Shutdown ends, but what the device
// may still write to is not freed.
DEVICE_TEST(device_that_stops) {
  DeviceTeam on(kind, Style::kProcesses, 2, Place::kDevice);
  on.team->SetOption("timeout_seconds", "0.5");
  Team::Program program = on.team->Compile({Allreduce(kLarge)});
  std::vector<RankArrays> arrays = {Numbers(kLarge, 0), Numbers(kLarge, 1)};
  std::vector<std::unique_ptr<OnDevice>> held;
  on.devices[0]->Hold(true);
  std::vector<Pending> pending;
  for (int rank = 0; rank < 2; ++rank) {
    pending.push_back(on.Start(rank, program.At(rank, 0), &arrays[rank], 1, &held));
  }
  CHECK(!pending[1].Get().ok());
  CHECK(!pending[0].IsOver());
  held[0]->LeaveResults();
  for (int rank = 0; rank < 2; ++rank) on.team->EngineOf(rank).Shutdown();
  CHECK(!pending[0].Get().ok());
  on.devices[0]->Abandon();
  held.clear();
}

DEVICE_TEST(device_refuses_what_it_cannot_do) {
  DeviceTeam on(kind, Style::kProcesses, 2, Place::kDevice);
  const bool cuda = kind == DeviceKind::kCuda;
  // What a codec does not have travels as it is; what it has needs its kernels.
  OpSpec spec = Allreduce(100, cuda ? "dgc|lossless" : "ternary"), plain = spec;
  spec.shapes = "float32[100]";
  Team::Program program = on.team->Compile({plain, spec});
  on.team->OnRanks([&](int rank) {
    RankArrays numbers = Numbers(100, rank);
    CHECK_OK(on.Run(rank, program.At(rank, 0), &numbers, 1));
    CHECK(IsSum(numbers, 100, 2, 0));
  });
  on.team->OnRanks([&](int rank) {
    RankArrays arrays = {.inputs = {testing::Array(DType::kFloat32, 1, 100)},
                         .outputs = {testing::Array(DType::kFloat32, 1, 100)},
                         .refs = {}};
    const Status status = on.Run(rank, program.At(rank, 1), &arrays, 1);
    CHECK(status.code() == Code::kUnimplemented || status.code() == Code::kAborted);
    const char* const wanted = cuda ? "codec 'dgc|lossless' of float32 does not run on cuda:0"
                                    : "codec 'ternary' of float32 does not run on fake:0";
    CHECK(status.message().find(wanted) != std::string::npos);
  });
}

// Sizes that do not fit are found out after the call has returned, and told to all.
DEVICE_TEST(device_ragged_sizes_are_checked) {
  for (Style style : testing::kStyles) {
    DeviceTeam on(kind, style, 2, Place::kDevice);
    OpSpec ragged;
    ragged.collective = Collective::kRaggedAlltoall;
    Team::Program program = on.team->Compile({ragged});
    on.team->OnRanks([&](int rank) {
      RankArrays arrays = Numbers(10, 0);
      arrays.inputs.push_back(arrays.inputs[0]);
      for (const std::vector<int32_t>& list : {std::vector<int32_t>{0, 5}, {5, rank == 0 ? 5 : 7},
                                               std::vector<int32_t>{0, 5}, {5, 5}}) {
        arrays.inputs.push_back(Int32s(list));
      }
      const Status status = on.Run(rank, program.At(rank, 0), &arrays, 1);
      CHECK(!status.ok());
      CHECK(status.message().find("runs past the end") != std::string::npos);
    });
  }
}

DEVICE_TEST(device_other_reference_is_refused) {
  DeviceTeam on(kind, Style::kProcesses, 2, Place::kMixed);
  OpSpec spec;
  spec.collective = Collective::kBcast;
  spec.root = 0;
  spec.codec = "lossless";
  spec.referenced = true;
  Team::Program program = on.team->Compile({spec});
  on.team->OnRanks([&](int rank) {
    RankArrays arrays = Numbers(1000, 0);
    arrays.refs = Numbers(1000, rank).inputs;
    const Status status = on.Run(rank, program.At(rank, 0), &arrays, 1);
    if (status.ok() && rank == 0) return;   // its values were taken before anybody looked
    const char* const wanted = "differs between";
    if (status.message().find(wanted) == std::string::npos) CHECK_EQ(status.message(), wanted);
  });
}

}  // namespace
}  // namespace jaxccomp
