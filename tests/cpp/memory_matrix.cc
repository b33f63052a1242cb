// Memory of failed operations between two processes over MPI or UCX (tests/stress/memory). Each case runs one operation
// on rank 0, which is watched, and on rank 1, which causes the failure. When the operation has ended on a rank, the
// test protects its memory or overwrites it. After that any access is an error, and no rank may accept the overwritten
// values.
//
// This is a shared library that Python loads, because Python owns the launcher, MPI and the exchange of addresses.
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "common/dynamic_library.h"
#include "ending.h"
#include "engine/engine.h"
#include "engine/membership.h"
#include "patience.h"
#include "transport/mpi/mpi_transport.h"
#include "transport/ucx/ucx_transport.h"
#include "watched_memory.h"

namespace jaxccomp {
namespace {

using testing::WatchedMemory;
using std::chrono::milliseconds;

constexpr double kPatience = 60;
constexpr int32_t kValue = 7, kLater = 666;
constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20;

// How rank 0 uses its memory when the operation fails.
struct Row {
  const char* what;
  Collective collective;
  int root;
  const char* codec;
  int64_t bytes;          // per operand
  int tensors;
  bool of_result;         // whether `held_at` is in a result, not in an operand
  int64_t held_at;        // byte at which a thread of rank 0 can be blocked; -1: no computation uses the memory
};

constexpr Row kRows[] = {
    {"encode", Collective::kAllreduce, -1, "lossless", 4 * kMiB, 1, false, 0},
    {"decode", Collective::kBcast, 1, "lossless", 4 * kMiB, 1, true, 0},
    {"merge", Collective::kAllreduce, -1, "raw", 4 * kMiB, 1, true, 0},
    {"fill", Collective::kReduce, 1, "raw", 4 * kMiB, 1, true, 2 * kMiB},
    {"gather", Collective::kAlltoall, -1, "raw", 4 * kMiB, 2, false, 2 * kMiB},
    {"staging copy", Collective::kBcast, 1, "raw", 4 * kMiB, 2, true, -1},
    {"operand copy", Collective::kBarrier, -1, "raw", 4 * kMiB, 1, true, 0},
    {"small send", Collective::kBcast, 0, "raw", kKiB, 1, false, -1},
    {"announced send", Collective::kBcast, 0, "raw", 4 * kMiB, 1, false, -1},
    {"send in flight", Collective::kBcast, 0, "raw", 32 * kMiB, 1, false, -1},
    {"announced receive", Collective::kBcast, 1, "raw", 64 * kKiB, 1, true, -1},
    {"receive in flight", Collective::kBcast, 1, "raw", 32 * kMiB, 1, true, -1},
    {"single-copy read", Collective::kBcast, 1, "raw", 8 * kMiB, 1, true, -1},
};

enum class Fault { kDeadline, kSigint, kPeerKilled, kPeerStopped, kPeerError };
constexpr const char* kFaults[] = {"deadline", "SIGINT", "peer killed", "peer stopped and continued", "peer error"};

struct World {
  int rank = 0;
  std::unique_ptr<Engine> engine;
};

// The result of a case, for the table.
struct Outcome {
  int32_t failed_checks = 0;
  int32_t failed = 0;   // whether the operation failed on rank 0
  int32_t held = 0;     // whether a thread was blocked in the memory when it failed
};

struct Visit : testing::Ending {
  Visit(const Row& row, bool overwrites) : overwrites(overwrites) {
    for (int i = 0; i < row.tensors; ++i) {
      in.push_back(std::make_unique<WatchedMemory>(static_cast<size_t>(row.bytes)));
      out.push_back(std::make_unique<WatchedMemory>(static_cast<size_t>(row.bytes)));
      std::fill_n(reinterpret_cast<int32_t*>(in.back()->data()), row.bytes / 4, kValue);
    }
  }

  // `expected`: the value of all results; 0: unknown.
  void Start(Engine& engine, CallSite& site, const Row& row, int32_t expected, int64_t run_id) {
    Call call;
    const int64_t values = row.bytes / 4;
    for (int i = 0; i < row.tensors; ++i) {
      const int64_t rows = row.collective == Collective::kAlltoall ? 2 : values;
      call.inputs.push_back({in[static_cast<size_t>(i)]->data(), DType::kInt32, rows, row.bytes});
      call.outputs.push_back({out[static_cast<size_t>(i)]->data(), DType::kInt32, rows, row.bytes});
    }
    call.run_id = run_id;
    count = values;
    expects = expected;
    std::optional<Status> now = engine.Start(
        site, std::move(call), [&] { return [this](Status end) { Told(std::move(end)); }; });
    if (!now.has_value()) return;
    // Told may write to stalled memory. It runs on the thread that would release this memory later: release it now.
    for (auto* memories : {&in, &out}) {
      for (auto& memory : *memories) memory->Release();
    }
    Told(std::move(*now));
  }
  bool touched() const {
    const auto touched = [&](const auto& memory) {
      if (!overwrites) return memory->touched();
      const auto* const values = reinterpret_cast<const int32_t*>(memory->data());
      return !std::all_of(values, values + count, [](int32_t each) { return each == kLater; });
    };
    return std::ranges::any_of(in, touched) || std::ranges::any_of(out, touched);
  }

  std::vector<std::unique_ptr<WatchedMemory>> in, out;
  const bool overwrites;
  int64_t count = 0;
  int32_t expects = 0;

 private:
  void Told(Status end) {
    if (end.ok() && expects != 0) {
      for (const auto& memory : out) {
        const auto* const values = reinterpret_cast<const int32_t*>(memory->data());
        const auto* const other = std::find_if(values, values + count, [&](int32_t each) { return each != expects; });
        if (!CHECK(other == values + count)) std::fprintf(stderr, "value %d is %d\n", static_cast<int>(other - values), *other);
      }
    }
    for (auto* memories : {&in, &out}) {
      for (auto& memory : *memories) {
        if (overwrites) {
          std::fill_n(reinterpret_cast<int32_t*>(memory->data()), count, kLater);
        } else {
          memory->GiveBack();
        }
      }
    }
    SendControl(std::move(end));
  }
};

// The value of each result of `rank`; 0: not checked.
int32_t Expected(const Row& row, int rank) {
  if (row.collective == Collective::kAllreduce) return 2 * kValue;
  if (row.collective == Collective::kReduce) return rank == row.root ? 2 * kValue : 0;
  return kValue;
}

// Stops this process until a background shell continues it.
void StopThisProcess() {
  const std::string later = "(sleep 0.8; kill -CONT " + std::to_string(getpid()) + ") >/dev/null 2>&1 &";
  CHECK_EQ(std::system(later.c_str()), 0);
  CHECK_EQ(kill(getpid(), SIGSTOP), 0);
}

Outcome RunCase(World& world, const Row& row, Fault fault, int number) {
  const int64_t failed_before = testing::FailedChecks();
  Outcome outcome;
  Engine& engine = *world.engine;
  const bool watched = world.rank == 0;
  // Both ranks draw the same numbers.
  std::mt19937 random(static_cast<uint32_t>(number * 64 + (&row - kRows) * 8 + static_cast<int>(fault)));
  const auto draw = [&](int most) { return milliseconds(std::uniform_int_distribution<int>(0, most)(random)); };
  const bool holds = row.held_at >= 0 && number % 3 != 2;
  const bool overwrites = number % 2 == 0;
  const milliseconds late = holds ? milliseconds(0) : draw(fault == Fault::kDeadline || fault == Fault::kSigint ? 450 : 3);
  // About the duration of a transfer.
  const std::chrono::microseconds until_fault(draw(500).count() * std::max<int64_t>(row.bytes / kMiB, 1));

  const std::string name = "case " + std::to_string(number) + " of " + row.what + ", " + kFaults[static_cast<int>(fault)];
  CHECK_OK(engine.membership().AddCommunicator(name, {0, 1}));
  const bool expires = watched && (fault == Fault::kDeadline || fault == Fault::kPeerStopped);
  CHECK_OK(engine.SetOption("timeout_seconds", expires ? "0.25" : "60"));
  OpSpec spec;
  spec.collective = row.collective;
  spec.root = row.root;
  spec.codec = row.codec;
  spec.communicator = name;
  for (int i = 0; i < row.tensors; ++i) {
    spec.shapes += (i > 0 ? ", int32[" : "int32[") + std::to_string(row.bytes / 4) + "]";
  }
  spec.where = "memory.py:1";
  Result<std::unique_ptr<CallSite>> made = MakeCallSite(std::move(spec));
  if (!CHECK_OK(made)) return {1, 0, 0};
  CallSite& site = **made;
  CloseProgram("");
  const Status why(Code::kInternal, "the peer has failed");
  {
    Visit visit(row, overwrites);
    WatchedMemory& memory = row.of_result ? *visit.out[0] : *visit.in[0];
    if (watched) {
      if (holds) memory.Stall(static_cast<size_t>(row.held_at));
      visit.Start(engine, site, row, Expected(row, 0), number + 1);
      const testing::Stopwatch watch;
      while (holds && !memory.stalls() && !visit.WaitFor(0.001) && watch.Seconds() < kPatience) {
      }
      outcome.held = memory.stalls();
      if (fault == Fault::kSigint) {
        std::this_thread::sleep_for(milliseconds(250));
        raise(SIGINT);
      }
      if (holds) {
        // In some cases, wait longer than an engine does before it uses force.
        std::this_thread::sleep_for(milliseconds(number % 4 == 0 ? 1800 : 600));
        CHECK(!memory.stalls() || !visit.WaitFor(0));   // an operation never ends while a thread is in its memory
        memory.Release();
      }
    } else {
      std::this_thread::sleep_for(late);
      // A failure may also come while the operation starts.
      std::thread failing([&] {
        std::this_thread::sleep_for(holds ? milliseconds(150) : until_fault);
        if (fault == Fault::kPeerKilled) kill(getpid(), SIGKILL);
        if (fault == Fault::kPeerStopped) StopThisProcess();
        if (fault == Fault::kPeerError) engine.Revoke(site, 0, why);
      });
      visit.Start(engine, site, row, Expected(row, 1), number + 1);
      failing.join();
    }
    if (!CHECK(visit.WaitFor(kPatience))) {
      std::fprintf(stderr, "not over: %s\n", name.c_str());
      std::fflush(stderr);
      _exit(1);
    }
    outcome.failed = watched && !visit.status.ok();
    // Wait longer than the other rank is stopped.
    std::this_thread::sleep_for(milliseconds(fault == Fault::kPeerStopped ? 1000 : 100));
    if (!CHECK(!visit.touched())) {
      std::fprintf(stderr, "used after the operation was over (%s): %s: %s\n", overwrites ? "values" : "pages",
                   name.c_str(), visit.status.message().c_str());
    }
  }
  engine.Forget(site);
  outcome.failed_checks = static_cast<int32_t>(testing::FailedChecks() - failed_before);
  if (outcome.failed_checks > 0) std::fprintf(stderr, "rank %d: %s\n", world.rank, name.c_str());
  return outcome;
}

World* Join(int rank, const int64_t* pids, const Engine::TransportFactory& make) {
  auto world = std::make_unique<World>();
  world->rank = rank;
  world->engine = std::make_unique<Engine>(rank, 2);
  Engine& engine = *world->engine;
  if (!CHECK_OK(engine.UseRemote(make))) return nullptr;
  engine.membership().SetSystemProcesses({{pids[0], StartTimeOf(pids[0])}, {pids[1], StartTimeOf(pids[1])}});
  engine.SetInterruptJudge([] { return true; });
  engine.SetAbortHandler(
      [](const std::string& pinned) {
        std::fprintf(stderr, "given up: %s\n", pinned.c_str());
        CHECK(pinned.empty());
      },
      std::chrono::seconds(10));
  CHECK_OK(engine.SetOption("check_programs", "0"));
  CHECK_OK(engine.SetOption("chunk_bytes", std::to_string(4 * kMiB)));
  return world.release();
}

Credit::Amount SmallCredit(int messages) { return {.bytes = messages * 4 * kKiB, .messages = messages}; }

std::unique_ptr<UcxWorker> g_worker;

}  // namespace
}  // namespace jaxccomp

extern "C" {

int JaxccompMemoryRows(const char** names, int most) {
  for (int i = 0; i < most && i < std::ssize(jaxccomp::kRows); ++i) names[i] = jaxccomp::kRows[i].what;
  return static_cast<int>(std::ssize(jaxccomp::kRows));
}

int JaxccompMemoryFaults(const char** names, int most) {
  for (int i = 0; i < most && i < std::ssize(jaxccomp::kFaults); ++i) names[i] = jaxccomp::kFaults[i];
  return static_cast<int>(std::ssize(jaxccomp::kFaults));
}

// `small_messages`: the credit of small messages.
void* JaxccompMemoryJoinMpi(int rank, const int64_t* pids, int small_messages, uint64_t comm, uint64_t byte_type,
                            int all_remote) {
  using namespace jaxccomp;
  return Join(rank, pids, [&](Receiver* receiver) -> Result<std::unique_ptr<Transport>> {
    auto made = MpiTransport::Create({.comm = comm,
                                      .byte_type = byte_type,
                                      .all_remote = all_remote != 0,
                                      .small_credit = SmallCredit(small_messages)},
                                     receiver);
    if (!made.ok()) return made.status();
    return std::unique_ptr<Transport>(std::move(*made));
  });
}

// Writes this rank's address and returns its length; -1: UCX is not available.
int JaxccompMemoryOpenUcx(char* address, int room) {
  using namespace jaxccomp;
  if (const char* path = std::getenv("JAXCCOMP_LIBUCP")) AddLibraryPath("ucp", path);
  auto opened = UcxWorker::Open("lo");
  if (!CHECK_OK(opened) || std::ssize((*opened)->address()) > room) return -1;
  g_worker = std::move(*opened);
  std::memcpy(address, g_worker->address().data(), g_worker->address().size());
  return static_cast<int>(g_worker->address().size());
}

// `reads`: the ranks read each other's memory.
void* JaxccompMemoryJoinUcx(int rank, const int64_t* pids, int small_messages, const char* const* addresses,
                            const int* bytes, int reads) {
  using namespace jaxccomp;
  UcxConfig config{.process = rank, .secret = {std::byte{7}}, .small_credit = SmallCredit(small_messages)};
  for (int i = 0; i < 2; ++i) config.addresses.emplace_back(addresses[i], static_cast<size_t>(bytes[i]));
  if (reads != 0) {
    config.memories.resize(2);
    config.readers.resize(2);
    config.memories[static_cast<size_t>(1 - rank)] = std::make_shared<PeerMemory>(static_cast<pid_t>(pids[1 - rank]));
    config.readers[static_cast<size_t>(1 - rank)] = true;
  }
  return Join(rank, pids, [&](Receiver* receiver) -> Result<std::unique_ptr<Transport>> {
    auto made = UcxTransport::Create(std::move(g_worker), config, receiver);
    if (!made.ok()) return made.status();
    return std::unique_ptr<Transport>(std::move(*made));
  });
}

// outcome: the members of Outcome.
void JaxccompMemoryCase(void* world, int row, int fault, int number, int32_t* outcome) {
  using namespace jaxccomp;
  const Outcome of = RunCase(*static_cast<World*>(world), kRows[row], static_cast<Fault>(fault), number);
  outcome[0] = of.failed_checks;
  outcome[1] = of.failed;
  outcome[2] = of.held;
}

void JaxccompMemoryLeave(void* world) { delete static_cast<jaxccomp::World*>(world); }

}  // extern "C"
