// Collectives whose messages stay in the memory of their senders' devices.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "device/ipc/descriptor.h"
#include "device_exercises.h"
#include "device_sums.h"
#include "device_team.h"
#include "device_trials.h"

namespace jaxccomp {
namespace {

using testing::Allreduce;
using testing::Compare;
using testing::DeviceTeam;
using testing::EveryAlgorithm;
using testing::Exercise;
using testing::FailOnce;
using testing::Faults;
using testing::IsSum;
using testing::kCollectives;
using testing::kExercisedCodecs;
using testing::Numbers;
using testing::Of;
using testing::OnDevice;
using testing::PassOnLate;
using testing::Pending;
using testing::RankArrays;
using testing::RunManyAtOnce;
using testing::ShutDownInFlight;
using testing::SomeOf;
using testing::Style;
using testing::Team;
using Place = DeviceTeam::Place;
using std::chrono::milliseconds;

constexpr int64_t kLarge = 60000;

// ---- Values ------------------------------------------------------------------------------

DEVICE_TEST(ipc_every_collective_and_codec) {
  for (Style style : testing::StylesOf(kind)) {
    for (int ranks : SomeOf<int>({2, 5})) {
      std::vector<Exercise> exercises;
      for (Collective c : kCollectives) {
        for (const char* codec : kExercisedCodecs) {
          for (int64_t count : {1, 1003}) exercises.push_back(Of(c, ranks, codec, count));
        }
      }
      const int64_t least_bytes = ranks == 2 ? 1 : 1500;   // all of a call's messages, or some
      CHECK(Compare(kind, style, ranks, 4096, exercises, least_bytes) > 10000);
    }
  }
}

DEVICE_TEST(ipc_every_algorithm_in_chunks) {
  for (Style style : testing::StylesOf(kind)) {
    for (int ranks : SomeOf<int>({2, 3, 5})) {
      CHECK(Compare(kind, style, ranks, 64 << 10, EveryAlgorithm(ranks), 16 << 10) > 1000000);
    }
  }
}

DEVICE_TEST(ipc_references_feedback_and_means) {
  for (Style style : testing::kStyles) {
    std::vector<Exercise> exercises;
    for (const char* codec : {"raw", "lossless", "int8", "bf16|lossless"}) {
      Exercise e = Of(Collective::kBcast, 4, codec, 5003);
      e.spec.referenced = true;
      exercises.push_back(e);
      e.leaves.erase(e.leaves.begin() + 1);   // all have a codec
      exercises.push_back(e);
      e.spec.algorithm = "binomial";
      exercises.push_back(e);
      Exercise mean = Of(Collective::kAllreduce, 4, codec, 5003);
      mean.leaves.erase(mean.leaves.begin() + 1);
      mean.spec.mean = mean.spec.feedback = true;
      exercises.push_back(mean);
    }
    CHECK(Compare(kind, style, 4, 4096, exercises, 1) > 100000);
  }
}

// Shared memory for a few blocks only: what finds no room travels as ever.
DEVICE_TEST(ipc_when_shared_memory_is_short) {
  for (Style style : testing::kStyles) {
    for (int64_t shared_bytes : {256, 70 << 10}) {
      std::vector<Exercise> exercises;
      for (Collective c : {Collective::kBcast, Collective::kAllreduce, Collective::kAlltoall}) {
        for (const char* codec : {"raw", "int8", "lossless"}) {
          exercises.push_back(Of(c, 4, codec, 90011));
        }
      }
      Compare(kind, style, 4, 64 << 10, exercises, 1, shared_bytes);
    }
  }
}

DEVICE_TEST(ipc_without_shared_memory) {
  DeviceTeam on(kind, Style::kProcesses, 3, Place::kDevice);
  on.devices[1]->faults.shared_allocation = 1;
  on.Share(1);
  Team::Program program = on.team->Compile({Allreduce(kLarge), Allreduce(kLarge, "lossless")});
  on.team->OnRanks([&](int rank) {
    for (int i = 0; i < 2; ++i) {
      RankArrays arrays = Numbers(kLarge, rank);
      CHECK_OK(on.Run(rank, program.At(rank, i), &arrays, 1));
      IsSum(arrays, kLarge, 3, 0);
    }
  });
  const auto exported = [&](int rank) {
    return on.team->EngineOf(rank).GetStats()[static_cast<size_t>(Collective::kAllreduce)].ipc_bytes;
  };
  CHECK(exported(0) > 0);
  CHECK_EQ(exported(1), 0);
  on.CheckAllReturned();
}

// ---- Agreement ---------------------------------------------------------------------------

// Runs an allreduce and returns what each rank has exported of it.
std::vector<int64_t> IpcBytesByRank(DeviceTeam& on) {
  Team::Program program = on.team->Compile({Allreduce(kLarge)});
  const int64_t run_id = on.team->NextRunId();
  on.team->OnRanks([&](int rank) {
    RankArrays arrays = Numbers(kLarge, rank);
    CHECK_OK(on.Run(rank, program.At(rank, 0), &arrays, run_id));
    IsSum(arrays, kLarge, on.team->ranks, 0);
  });
  std::vector<int64_t> exported;
  for (int rank = 0; rank < on.team->ranks; ++rank) {
    exported.push_back(
        on.team->EngineOf(rank).GetStats()[static_cast<size_t>(Collective::kAllreduce)].ipc_bytes);
  }
  on.CheckAllReturned();
  return exported;
}

DEVICE_TEST(ipc_need_one_value_of_the_option) {
  DeviceTeam on(kind, Style::kProcesses, 4, Place::kDevice);
  on.team->SetOption("device_ipc_memory_bytes", std::to_string(16 << 20));
  for (int rank = 0; rank < 4; ++rank) {
    CHECK_OK(on.team->EngineOf(rank).SetOption("device_ipc_bytes", rank == 3 ? "2000" : "1000"));
  }
  on.Join([](std::vector<std::string>*) {});
  CHECK(on.reasons[0][3].find("device_ipc_bytes is 2000, and here 1000") != std::string::npos);
  CHECK(on.reasons[0][1].empty());
  const std::vector<int64_t> exported = IpcBytesByRank(on);
  CHECK(exported[0] > 0);
  CHECK_EQ(exported[3], 0);
}

DEVICE_TEST(ipc_are_off_by_default) {
  DeviceTeam on(kind, Style::kProcesses, 2, Place::kDevice);
  on.Join([](std::vector<std::string>* offers) {
    for (const std::string& offer : *offers) CHECK(offer.empty());
  });
  CHECK(IpcBytesByRank(on) == std::vector<int64_t>({0, 0}));
}

// One rank's offer arrives broken: the others go on with each other.
DEVICE_TEST(ipc_with_a_broken_descriptor) {
  DeviceTeam on(kind, Style::kProcesses, 3, Place::kDevice);
  on.team->SetOption("device_ipc_bytes", "1");
  on.team->SetOption("device_ipc_memory_bytes", std::to_string(16 << 20));
  on.Join([](std::vector<std::string>* offers) { (*offers)[1][40] ^= 1; });
  CHECK(!on.reasons[0][1].empty());
  const std::vector<int64_t> exported = IpcBytesByRank(on);
  CHECK_EQ(exported[1], 0);
  CHECK(exported[0] + exported[2] > 0);
}

DEVICE_TEST(ipc_of_devices_that_do_not_reach_each_other) {
  DeviceTeam on(kind, Style::kProcesses, 3, Place::kDevice);
  on.devices[2]->faults.import = 1;   // of the first rank's
  on.Share(1);
  CHECK(!on.reasons[2][0].empty());
  const std::vector<int64_t> exported = IpcBytesByRank(on);
  CHECK(exported[1] + exported[2] > 0);
}

// A rank with a device, whose tensors lie in the host's memory this time: it refuses the descriptors, gets
// the bytes, and none of its neighbours exports anything to it there again.
DEVICE_TEST(ipc_to_tensors_on_the_host) {
  for (const char* codec : {"raw", "lossless", "int8"}) {
    DeviceTeam on(kind, Style::kProcesses, 3, Place::kDevice);
    on.team->SetOption("chunk_bytes", "16384");
    on.Share(1000);
    OpSpec bcast = Of(Collective::kBcast, 3, codec, 20011).spec;
    OpSpec referenced = bcast;
    referenced.referenced = true;
    const std::vector<OpSpec> specs = {Allreduce(kLarge, codec), bcast, referenced};
    Team::Program program = on.team->Compile(specs);
    for (int run = 1; run <= 2; ++run) {
      std::vector<std::vector<RankArrays>> all(3);
      on.team->OnRanks([&](int rank) {
        Exercise e = Of(Collective::kBcast, 3, codec, 20011);
        all[rank].push_back(Numbers(kLarge, rank));
        all[rank].push_back(testing::ArraysOf(e, rank));
        e.spec.referenced = true;
        all[rank].push_back(testing::ArraysOf(e, rank));
        for (size_t i = 0; i < specs.size(); ++i) {
          if (rank != 1) {
            CHECK_OK(on.Run(rank, program.At(rank, i), &all[rank][i], run));
            continue;
          }
          Call call = testing::OnHost(&all[rank][i]);
          call.run_id = run;
          CHECK_OK(on.team->Run(rank, program.At(rank, i), std::move(call)));
        }
      });
      IsSum(all[1][0], kLarge, 3, 0);
      for (int rank = 0; rank < 3; ++rank) {
        for (size_t i = 0; i < specs.size(); ++i) CHECK(all[rank][i].outputs == all[0][i].outputs);
      }
      on.CheckAllReturned();
    }
    CHECK(on.IpcBytes() > 0);
  }
}

// ---- Order -------------------------------------------------------------------------------

// All under way at once, in shared memory that is too small for all.
DEVICE_TEST(ipc_of_many_operations) {
  for (Style style : testing::kStyles) {
    for (Place place : {Place::kDevice, Place::kMixed}) {
      DeviceTeam on(kind, style, 3, place);
      on.team->SetOption("chunk_bytes", "16384");
      on.Share(1000, 1 << 20);
      RunManyAtOnce(on, kLarge);
      on.CheckAllReturned();
    }
  }
}

OpSpec PointToPoint(bool sends, int peer, int64_t tag) {
  OpSpec spec;
  spec.collective = sends ? Collective::kSend : Collective::kRecv;
  spec.pairs = {peer};
  spec.tag = tag;
  return spec;
}

// Each sends before it receives, on one stream: neither may wait until the other's stream has come to
// its receive.
DEVICE_TEST(ipc_hold_no_sender_up) {
  DeviceTeam on(kind, Style::kProcesses, 2, Place::kDevice);
  on.team->SetOption("timeout_seconds", "20");
  on.Share(1);
  Team::Program program = on.team->Compile([](int rank) {
    return std::vector<OpSpec>{PointToPoint(true, rank ^ 1, rank), PointToPoint(false, rank ^ 1, rank ^ 1)};
  });
  on.team->OnRanks([&](int rank) {
    RankArrays sent = Numbers(kLarge, rank), got = Numbers(kLarge, 100);
    std::vector<std::unique_ptr<OnDevice>> held;
    const Pending first = on.Start(rank, program.At(rank, 0), &sent, 1, &held);
    const Pending second = on.Start(rank, program.At(rank, 1), &got, 1, &held);
    CHECK_OK(first.Get());
    CHECK_OK(second.Get());
    on.streams[rank]->Finish();
    CHECK(got.outputs == Numbers(kLarge, rank ^ 1).inputs);
  });
  CHECK(on.IpcBytes() > 0);
  on.CheckAllReturned();
}

DEVICE_TEST(ipc_are_passed_on_by_who_is_late) {
  DeviceTeam on(kind, Style::kProcesses, 3, Place::kDevice);
  on.Share(1);
  PassOnLate(on, kLarge);
  on.CheckAllReturned();
}

// ---- What goes wrong ---------------------------------------------------------------------

DEVICE_TEST(ipc_and_injected_failures) {
  int failed = 0;
  for (Style style : testing::kStyles) {
    for (Place place : {Place::kDevice, Place::kMixed}) {
      for (int when : {1, 2, 3, 5, 7, 11, 15, 23, 40}) {
        DeviceTeam on(kind, style, 3, place);
        on.team->SetOption("chunk_bytes", "16384");
        on.team->SetOption("timeout_seconds", "30");
        on.Share(1000, 4 << 20);
        failed += FailOnce(on, 20011, &Faults::computation, when);
        // Nobody holds on to what failed.
        on.CheckAllReturned();
      }
    }
  }
  CHECK(failed > 15);
}

// Descriptors that change on their way, and such as name what was never exported: an error on all ranks.
DEVICE_TEST(ipc_with_broken_descriptors) {
  for (int what = 0; what < 6; ++what) {
    DeviceTeam on(kind, Style::kProcesses, 4, Place::kDevice);
    on.team->SetOption("chunk_bytes", "16384");
    on.team->SetOption("timeout_seconds", "20");
    on.Share(1000);
    std::atomic<int> descriptors = 0;
    on.team->hub().tamper = [&](const Header& header, std::vector<std::byte>* payload) {
      if (header.type != MessageType::kDescriptor || ++descriptors != 4) return;
      IpcDescriptor descriptor = *ReadDescriptor(*payload);
      switch (what) {
        case 0: (*payload)[payload->size() / 2] ^= std::byte{1}; return;
        case 1: payload->resize(payload->size() - 1); return;
        case 2: descriptor.pieces[0].offset = int64_t{1} << 40; break;
        case 3: descriptor.memory = 9; break;
        case 4: descriptor.exporter ^= 1; break;
        case 5:
          descriptor.pieces[0].bytes += 8;
          descriptor.payload_bytes += 8;
          break;
      }
      const std::string text = WriteDescriptor(descriptor);
      const auto bytes = std::as_bytes(std::span(text));
      payload->assign(bytes.begin(), bytes.end());
    };
    Team::Program program = on.team->Compile({Allreduce(kLarge), Allreduce(kLarge, "lossless")});
    bool data_loss = false;
    std::mutex mutex;
    on.team->OnRanks([&](int rank) {
      Status status;
      for (int site = 0; site < 2 && status.ok(); ++site) {
        RankArrays arrays = Numbers(kLarge, rank);
        status = on.Run(rank, program.At(rank, site), &arrays, 1);
        if (status.ok()) IsSum(arrays, kLarge, 4, 0);
      }
      std::lock_guard<std::mutex> lock(mutex);
      data_loss |= status.code() == Code::kDataLoss || status.code() == Code::kFailedPrecondition;
    });
    CHECK(descriptors >= 4);
    CHECK(data_loss);
  }
}

// An importer is lost while it has imports: its exporter's operation ends with the error, what it has is
// never used again, and the other ranks' are.
DEVICE_TEST(ipc_to_a_lost_rank_are_given_up) {
  DeviceTeam on(kind, Style::kProcesses, 2, Place::kDevice);
  on.team->SetOption("timeout_seconds", "60");
  on.Share(1);
  Team::Program program = on.team->Compile([](int rank) {
    return std::vector<OpSpec>{PointToPoint(rank == 0, rank ^ 1, 0), Allreduce(kLarge)};
  });
  std::vector<std::unique_ptr<OnDevice>> held;
  RankArrays sent = Numbers(kLarge, 0), got = Numbers(kLarge, 1), sum = Numbers(kLarge, 2);
  // The importer's device stands still.
  on.devices[1]->Hold(true);
  const Pending receive = on.Start(1, program.At(1, 0), &got, 1, &held);
  const Pending send = on.Start(0, program.At(0, 0), &sent, 1, &held);
  CHECK_OK(send.Get());
  CHECK_EQ(on.team->EngineOf(0).CountExported(), 1);
  for (int i = 0; i < 20000 && on.devices[1]->computations() == 0; ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  const Pending waits = on.Start(0, program.At(0, 1), &sum, 1, &held);
  on.team->hub().Lose(1);
  CHECK(!waits.Get().ok());
  std::this_thread::sleep_for(milliseconds(30));
  CHECK_EQ(on.team->EngineOf(0).CountExported(), 1);
  on.devices[1]->Hold(false);
  static_cast<void>(receive.Get());
  for (auto& stream : on.streams) stream->Finish();
}

// A device that stops while it reads what it has imported: both ranks' engines end.
DEVICE_TEST(ipc_to_a_device_that_stops) {
  DeviceTeam on(kind, Style::kProcesses, 2, Place::kDevice);
  on.team->SetOption("timeout_seconds", "0.5");
  on.Share(1);
  Team::Program program = on.team->Compile({Allreduce(kLarge), Allreduce(kLarge)});
  std::vector<RankArrays> arrays = {Numbers(kLarge, 0), Numbers(kLarge, 1)};
  std::vector<std::unique_ptr<OnDevice>> held;
  on.devices[0]->Hold(true);
  std::vector<Pending> pending;
  for (int rank = 0; rank < 2; ++rank) {
    pending.push_back(on.Start(rank, program.At(rank, 0), &arrays[rank], 1, &held));
  }
  CHECK(!pending[1].Get().ok());
  held[0]->LeaveResults();
  for (int rank = 0; rank < 2; ++rank) on.team->EngineOf(rank).Shutdown();
  CHECK(!pending[0].Get().ok());
  on.devices[0]->Abandon();
  held.clear();
}

DEVICE_TEST(ipc_at_shutdown) {
  for (Style style : testing::kStyles) {
    ShutDownInFlight(kind, style, 16384, {{kLarge}, {kLarge + 1, "lossless"}},
                     [](DeviceTeam& on) { on.Share(1000); });
  }
}

}  // namespace
}  // namespace jaxccomp
