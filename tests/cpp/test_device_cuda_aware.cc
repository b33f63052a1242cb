// Collectives whose messages are sent from, and received into, memory of devices by a transport that takes
// it, as a CUDA-aware MPI does.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "device_exercises.h"
#include "device_sums.h"
#include "device_team.h"
#include "device_trials.h"

namespace jaxccomp {
namespace {

using testing::Allreduce;
using testing::Compare;
using testing::DeviceKind;
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

struct Moved {
  int64_t sent = 0, received = 0, exported = 0;
};

// With all messages that are large enough in memory of devices. With `hosts`, those within one are
// exported.
Moved CompareCudaAware(DeviceKind kind, int ranks, int64_t chunk_bytes,
                    const std::vector<Exercise>& exercises, int64_t memory_bytes = 64 << 20,
                    std::vector<int> hosts = {}) {
  Moved moved;
  Compare(kind, Style::kProcesses, ranks, chunk_bytes, exercises,
          [&](DeviceTeam& on) {
            on.hosts = hosts;
            on.SendCudaAware(1, memory_bytes);
            for (const Status& status : on.warm_status) CHECK_OK(status);
            if (!hosts.empty()) on.Share(1000, memory_bytes);
          },
          [&](DeviceTeam& on) {
            const auto [sent, received] = on.CudaAwareBytes();
            moved.sent += sent;
            moved.received += received;
            moved.exported += on.IpcBytes();
            on.CheckAllReturned();
          });
  return moved;
}

// ---- Values ------------------------------------------------------------------------------

DEVICE_TEST(cuda_aware_every_collective_and_codec) {
  for (int ranks : SomeOf<int>({2, 5})) {
    std::vector<Exercise> exercises;
    for (Collective c : kCollectives) {
      for (const char* codec : kExercisedCodecs) {
        Exercise e = Of(c, ranks, codec, 20011);   // codes of several parts
        exercises.push_back(e);
        e.leaves.resize(1);                        // and of one
        exercises.push_back(e);
      }
    }
    const Moved moved = CompareCudaAware(kind, ranks, 32 << 10, exercises);
    CHECK(moved.sent > 1000000);
    CHECK(moved.received > 1000000);
    CHECK(moved.received < moved.sent * 2);
    CHECK_EQ(moved.exported, 0);
  }
}

DEVICE_TEST(cuda_aware_every_algorithm_in_chunks) {
  for (int ranks : SomeOf<int>({2, 3})) {
    const Moved moved = CompareCudaAware(kind, ranks, 64 << 10, EveryAlgorithm(ranks));
    CHECK(moved.sent > 1000000);
    CHECK(moved.received > 1000000);
  }
}

// Two hosts: what is exported within one is sent from there to the other, and what has come is exported on.
DEVICE_TEST(cuda_aware_between_hosts_and_ipc_within) {
  constexpr int kRanks = 5;
  std::vector<Exercise> exercises;
  for (Exercise& e : EveryAlgorithm(kRanks)) {
    // Codes of several parts are sent from the host's memory.
    if (e.spec.codec != "raw") e.leaves.resize(1);
    exercises.push_back(e);
  }
  const Moved moved = CompareCudaAware(kind, kRanks, 64 << 10, exercises, 64 << 20, {0, 1, 0, 1, 0});
  CHECK(moved.sent > 1000000);
  CHECK(moved.received > 1000000);
  CHECK(moved.exported > 1000000);
}

DEVICE_TEST(cuda_aware_references_feedback_and_means) {
  for (bool mixed_hosts : {false, true}) {
    std::vector<Exercise> exercises;
    for (const char* codec : {"raw", "lossless", "int8", "bf16|lossless"}) {
      Exercise e = Of(Collective::kBcast, 4, codec, 50003);
      e.spec.referenced = true;
      exercises.push_back(e);
      e.leaves.resize(1);   // all have a codec
      exercises.push_back(e);
      e.spec.algorithm = "binomial";
      exercises.push_back(e);
      e.spec.algorithm = "chain";
      exercises.push_back(e);
      Exercise mean = Of(Collective::kAllreduce, 4, codec, 50003);
      mean.leaves.erase(mean.leaves.begin() + 1);
      mean.spec.mean = mean.spec.feedback = true;
      exercises.push_back(mean);
    }
    const Moved moved = CompareCudaAware(kind, 4, 64 << 10, exercises, 64 << 20,
                                      mixed_hosts ? std::vector<int>{0, 0, 1, 1} : std::vector<int>());
    CHECK(moved.sent > 100000);
    CHECK(moved.received > 100000);
  }
}

// Codes that become too small to travel from a device: nearly all values are alike.
DEVICE_TEST(cuda_aware_codes_that_become_small) {
  DeviceTeam on(kind, Style::kProcesses, 3, Place::kDevice);
  on.SendCudaAware(1);
  OpSpec bcast = Of(Collective::kBcast, 3, "lossless", 100000).spec;
  bcast.algorithm = "chain";
  Team::Program program = on.team->Compile({bcast});
  const auto root = static_cast<int>(bcast.root);
  std::vector<RankArrays> all(3);
  on.team->OnRanks([&](int rank) {
    all[rank] = Numbers(100000, rank);
    auto& bytes = all[rank].inputs[0].bytes;
    std::fill(bytes.begin() + 400, bytes.end(), std::byte{0});
    CHECK_OK(on.Run(rank, program.At(rank, 0), &all[rank], 1));
  });
  for (int rank = 0; rank < 3; ++rank) CHECK(all[rank].outputs == all[root].inputs);
  const CollectiveStats stats =
      on.team->EngineOf(root).GetStats()[static_cast<size_t>(Collective::kBcast)];
  CHECK(stats.sent_bytes > 0 && stats.sent_bytes <= kMostAlongBytes);
  CHECK_EQ(on.CudaAwareBytes().first, 0);
}

// Set-aside memory for a few messages only: what finds no room travels as ever.
DEVICE_TEST(cuda_aware_when_memory_is_short) {
  std::vector<Exercise> exercises;
  for (Collective c : {Collective::kBcast, Collective::kAlltoall}) {
    for (const char* codec : {"raw", "lossless"}) {
      Exercise e = Of(c, 3, codec, 2000011);
      e.leaves.resize(1);
      exercises.push_back(e);
    }
  }
  const Moved moved = CompareCudaAware(kind, 3, 4 << 20, exercises, 11 << 20);
  CHECK(moved.sent > 1000000);
  CHECK(moved.received > 1000000);
}

DEVICE_TEST(cuda_aware_of_many_operations) {
  for (Place place : {Place::kDevice, Place::kMixed}) {
    DeviceTeam on(kind, Style::kProcesses, 3, place);
    on.team->SetOption("chunk_bytes", "32768");
    on.SendCudaAware(10000, 11 << 20);
    RunManyAtOnce(on, kLarge);
    CHECK(place == Place::kMixed || on.CudaAwareBytes().first > 0);
  }
}

DEVICE_TEST(cuda_aware_is_passed_on_by_who_is_late) {
  DeviceTeam on(kind, Style::kProcesses, 3, Place::kDevice);
  on.SendCudaAware(1);
  PassOnLate(on, kLarge);
  CHECK(on.CudaAwareBytes().first > 0);
}

// ---- Agreement ---------------------------------------------------------------------------

// Runs an allreduce; what each rank has sent from its device, and received there.
std::vector<int64_t> CudaAwareByRank(DeviceTeam& on) {
  Team::Program program = on.team->Compile({Allreduce(kLarge)});
  const int64_t run_id = on.team->NextRunId();
  on.team->OnRanks([&](int rank) {
    RankArrays arrays = Numbers(kLarge, rank);
    CHECK_OK(on.Run(rank, program.At(rank, 0), &arrays, run_id));
    IsSum(arrays, kLarge, on.team->ranks, 0);
  });
  std::vector<int64_t> bytes;
  for (int rank = 0; rank < on.team->ranks; ++rank) {
    const CollectiveStats stats =
        on.team->EngineOf(rank).GetStats()[static_cast<size_t>(Collective::kAllreduce)];
    bytes.push_back(stats.cuda_aware_sent_bytes + stats.cuda_aware_received_bytes);
  }
  return bytes;
}

DEVICE_TEST(cuda_aware_is_off_by_default) {
  DeviceTeam on(kind, Style::kProcesses, 2, Place::kDevice);
  for (const std::string& why : on.JoinCudaAware()) {
    CHECK(why.find("device_mpi_bytes is 0") != std::string::npos);
  }
  CHECK(CudaAwareByRank(on) == std::vector<int64_t>({0, 0}));
}

DEVICE_TEST(cuda_aware_takes_a_transport_that_reaches_devices) {
  DeviceTeam on(kind, Style::kProcesses, 2, Place::kDevice);
  on.team->SetOption("device_mpi_bytes", "1");
  for (const std::string& why : on.JoinCudaAware()) {
    CHECK(why.find("memory of the host only") != std::string::npos);
  }
  CHECK(CudaAwareByRank(on) == std::vector<int64_t>({0, 0}));
}

DEVICE_TEST(cuda_aware_takes_memory) {
  DeviceTeam on(kind, Style::kProcesses, 4, Place::kDevice);
  on.devices[1]->faults.shared_allocation = 1;
  on.devices[2] = nullptr;
  const std::vector<std::string> why = on.SendCudaAware(1);
  CHECK(why[1].find("left to set aside") != std::string::npos);
  CHECK(why[2].find("no GPU") != std::string::npos);
  const std::vector<int64_t> bytes = CudaAwareByRank(on);
  CHECK(bytes[0] > 0);
  CHECK_EQ(bytes[1], 0);
  CHECK_EQ(bytes[2], 0);
  DeviceTeam small(kind, Style::kProcesses, 2, Place::kDevice);
  CHECK(small.SendCudaAware(1, 1 << 20)[0].find("it takes at least") != std::string::npos);
}

// Messages of one pair that do not arrive as they were sent: the others go on.
DEVICE_TEST(cuda_aware_leaves_out_pairs_that_do_not_work) {
  DeviceTeam on(kind, Style::kProcesses, 3, Place::kDevice);
  on.team->hub().exchange = [](int from, int to, std::vector<std::byte>* bytes) {
    if (from == 1 && to == 0) bytes->back() ^= std::byte{1};
    return true;
  };
  on.SendCudaAware(1);
  CHECK(on.cuda_aware_works[0] == std::vector<uint8_t>({0, 0, 1}));
  CHECK(on.cuda_aware_works[1] == std::vector<uint8_t>({1, 0, 1}));
  CHECK(on.cuda_aware_reasons[0][1].find("other bytes") != std::string::npos);
  CHECK(on.cuda_aware_reasons[0][2].empty());
  CHECK(CudaAwareByRank(on)[2] > 0);
}

DEVICE_TEST(cuda_aware_messages_that_never_arrive) {
  DeviceTeam on(kind, Style::kProcesses, 2, Place::kDevice);
  on.team->SetOption("device_mpi_bytes", "1");
  on.team->hub().open = [](void* at, int64_t bytes, int, int) {
    return testing::FakeMemory::Open(at, bytes);
  };
  on.team->hub().exchange = [](int from, int, std::vector<std::byte>*) { return from != 0; };
  on.JoinCudaAware(1);
  CHECK_OK(on.warm_status[0]);
  CHECK(on.warm_status[1].code() == Code::kDeadlineExceeded);
  // Both sides have to know.
  CHECK(CudaAwareByRank(on) == std::vector<int64_t>({0, 0}));
  on.devices[1]->Abandon();
}

// ---- What goes wrong ---------------------------------------------------------------------

DEVICE_TEST(cuda_aware_and_injected_failures) {
  int failed = 0;
  for (Place place : {Place::kDevice, Place::kMixed}) {
    for (int when : {1, 2, 3, 4, 5, 7, 9, 11, 15, 19, 23, 31, 40}) {
      DeviceTeam on(kind, Style::kProcesses, 3, place);
      on.team->SetOption("chunk_bytes", "32768");
      on.team->SetOption("timeout_seconds", "30");
      on.SendCudaAware(10000, 11 << 20);
      failed += FailOnce(on, 40011, &Faults::computation, when);
    }
  }
  CHECK(failed > 15);
}

// Codes that change on their way: an error, or other values, and never more.
DEVICE_TEST(cuda_aware_with_broken_heads) {
  for (int what = 0; what < 2; ++what) {
    DeviceTeam on(kind, Style::kProcesses, 2, Place::kDevice);
    on.team->SetOption("timeout_seconds", "20");
    std::atomic<int> opened = 0;
    on.SendCudaAware(1);
    on.team->hub().open = [&](void* address, int64_t bytes, int, int) {
      std::byte* const at = testing::FakeMemory::Open(address, bytes);
      // Both ends of the first message, before it is copied.
      if (++opened <= 2) at[what == 0 ? 0 : 7] ^= std::byte{0x40};
      return at;
    };
    OpSpec bcast;
    bcast.collective = Collective::kBcast;
    bcast.root = 0;
    bcast.codec = "lossless";
    bcast.algorithm = "chain";
    Team::Program program = on.team->Compile({bcast});
    std::vector<Status> told(2);
    on.team->OnRanks([&](int rank) {
      RankArrays arrays = Numbers(kLarge, rank);
      told[rank] = on.Run(rank, program.At(rank, 0), &arrays, 1);
    });
    CHECK(opened > 0);
    CHECK_EQ(told[1].code(), Code::kDataLoss);
    CHECK(told[1].message().find("length") != std::string::npos);
  }
}

DEVICE_TEST(cuda_aware_to_a_lost_rank) {
  DeviceTeam on(kind, Style::kProcesses, 2, Place::kDevice);
  on.team->SetOption("timeout_seconds", "60");
  on.SendCudaAware(1);
  Team::Program program = on.team->Compile({Allreduce(kLarge)});
  RankArrays sum = Numbers(kLarge, 0);
  std::vector<std::unique_ptr<OnDevice>> held;
  const Pending waits = on.Start(0, program.At(0, 0), &sum, 1, &held);
  std::this_thread::sleep_for(milliseconds(20));
  on.team->hub().Lose(1);
  CHECK(!waits.Get().ok());
  on.streams[0]->Finish();
}

DEVICE_TEST(cuda_aware_at_shutdown) {
  ShutDownInFlight(kind, Style::kProcesses, 32768, {{kLarge}, {kLarge + 1, "lossless"}},
                   [](DeviceTeam& on) { on.SendCudaAware(10000); });
}

}  // namespace
}  // namespace jaxccomp
