// A failed operation frees its memory after the last access, never earlier. watched_memory.h detects a later access.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "ending.h"
#include "patience.h"
#include "team.h"
#include "watched_memory.h"

namespace jaxccomp {
namespace {

using testing::Contains;
using testing::SpecOf;
using testing::Style;
using testing::Team;
using testing::WatchedMemory;

constexpr int64_t kCount = 1 << 20;   // int32 values: large computations
constexpr int64_t kBytes = kCount * 4;

// One rank's call of one operation. Its memory must not be accessed after the call is over.
struct Visit : testing::Ending {
  explicit Visit(int64_t in_bytes = kBytes, int64_t out_bytes = kBytes)
      : in(static_cast<size_t>(in_bytes)), out(static_cast<size_t>(out_bytes)), in_bytes(in_bytes), out_bytes(out_bytes) {}

  void Start(Team& team, int rank, CallSite& site, int64_t run_id) {
    const auto tensor = [&](const WatchedMemory& memory, int64_t bytes) {
      // One row for each rank, or one value per row.
      const bool gathered = site.spec.collective == Collective::kAllgather && bytes > in_bytes;
      return Tensor{memory.data(), DType::kInt32, gathered ? bytes / in_bytes : bytes / 4, bytes};
    };
    Call call;
    call.inputs = {tensor(in, in_bytes)};
    call.outputs = {tensor(out, out_bytes)};
    call.run_id = run_id;
    call.device = team.DeviceOf(rank);
    std::optional<Status> now = team.EngineOf(rank).Start(
        site, std::move(call), [&] { return [this](Status end) { Told(std::move(end)); }; });
    if (now.has_value()) Told(std::move(*now));
  }
  bool touched() const { return in.touched() || out.touched(); }

  WatchedMemory in, out;
  const int64_t in_bytes, out_bytes;

 private:
  void Told(Status end) {
    in.GiveBack();
    out.GiveBack();
    SendControl(std::move(end));
  }
};

constexpr double kPatience = 60;
// Longer than an engine waits before it uses force.
constexpr auto kForceful = std::chrono::milliseconds(1500);

enum class Fault { kDeadline, kPeerError, kPeerLost };

// An access to memory without the engine's lock. The test blocks the thread that accesses the byte at `offset`.
struct Touch {
  const char* what;
  Style style;
  OpSpec spec;
  bool of_result;
  int64_t offset;
  int64_t result_bytes = kBytes;
};

OpSpec Lossless(OpSpec spec) {
  spec.codec = "lossless";
  return spec;
}

std::vector<Touch> Touches() {
  const OpSpec allreduce = SpecOf(Collective::kAllreduce, kCount), allgather = SpecOf(Collective::kAllgather, kCount);
  const OpSpec bcast = SpecOf(Collective::kBcast, kCount, 1), reduce = SpecOf(Collective::kReduce, kCount, 1);
  const OpSpec barrier = SpecOf(Collective::kBarrier, kCount);   // copies its operand to its result
  return {
      {"an encoder", Style::kProcesses, Lossless(allreduce), false, 0},
      {"a decoder", Style::kProcesses, Lossless(bcast), true, 0},
      {"a decoder that adds", Style::kProcesses, Lossless(allreduce), true, 0},
      {"a merge", Style::kProcesses, allreduce, true, 0},
      {"a merge within the process", Style::kDevices, allreduce, true, 0},
      {"a copy", Style::kDevices, allgather, true, 0, 2 * kBytes},
      {"a copy of what a peer has", Style::kDevices, bcast, true, 0},
      {"zeros", Style::kProcesses, reduce, true, kBytes / 2},
      {"a copy of an operand", Style::kProcesses, barrier, true, 0},
  };
}

// Blocks rank 0 in its own memory while the operation fails.
void FailWhileTouched(const Touch& touch, Fault fault) {
  Team team(touch.style, 2);
  team.SetOption("timeout_seconds", "60");
  team.SetOption("check_programs", "0");
  team.SetOption("chunk_bytes", std::to_string(kBytes));
  Team::Program program = team.Compile(std::vector<OpSpec>{touch.spec});
  std::vector<std::unique_ptr<Visit>> visits;
  for (int rank = 0; rank < 2; ++rank) visits.push_back(std::make_unique<Visit>(kBytes, touch.result_bytes));
  WatchedMemory& watched = touch.of_result ? visits[0]->out : visits[0]->in;
  watched.Stall(static_cast<size_t>(touch.offset));
  visits[1]->Start(team, 1, program.At(1, 0), 1);
  visits[0]->Start(team, 0, program.At(0, 0), 1);   // does not block XLA's thread
  const testing::Stopwatch watch;
  while (!watched.stalls() && watch.Seconds() < kPatience) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!CHECK(watched.stalls())) std::fprintf(stderr, "nobody came to it: %s\n", touch.what);
  const Status why(Code::kInternal, "a peer has failed");
  if (fault == Fault::kPeerError) team.EngineOf(0).Revoke(program.At(0, 0), team.DeviceOf(0), why);
  if (fault == Fault::kPeerLost) team.hub().MarkFailed(1);
  if (fault == Fault::kDeadline) team.SetOption("timeout_seconds", "0.5");
  // The thread that handles deadlines and errors is not blocked either.
  if (fault != Fault::kPeerLost && touch.style == Style::kProcesses) CHECK(visits[1]->WaitFor(kPatience));
  std::this_thread::sleep_for(kForceful);
  const bool early = visits[0]->WaitFor(0);
  if (!CHECK(!early)) {
    std::fprintf(stderr, "completed while its memory was in use: %s: %s\n", touch.what, visits[0]->status.message().c_str());
  }
  watched.Release();
  if (fault == Fault::kPeerLost) team.EngineOf(1).Revoke(program.At(1, 0), team.DeviceOf(1), why);
  for (auto& visit : visits) CHECK(visit->WaitFor(kPatience));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (auto& visit : visits) {
    if (!CHECK(!visit->touched())) std::fprintf(stderr, "touched after it was given back: %s\n", touch.what);
  }
}

TEST(engine_frees_memory_of_a_failed_operation_after_the_last_access) {
  std::vector<std::thread> threads;   // run concurrently: each mostly waits
  for (const Touch& touch : Touches()) {
    for (Fault fault : {Fault::kDeadline, Fault::kPeerError, Fault::kPeerLost}) {
      if (fault == Fault::kPeerLost && touch.style == Style::kDevices) continue;
      threads.emplace_back(FailWhileTouched, touch, fault);
    }
  }
  for (std::thread& thread : threads) thread.join();
}

// A send without a receive fails at its deadline, and the engine cancels it at once. A later receive ends with an
// error.
TEST(engine_frees_memory_of_a_send_without_a_receive) {
  Team team(Style::kProcesses, 2);
  team.SetOption("timeout_seconds", "0.5");
  team.SetOption("check_programs", "0");
  Team::Program program = team.Compile(std::vector<OpSpec>{SpecOf(Collective::kBcast, kCount, 0)});
  Visit sender, receiver;
  sender.Start(team, 0, program.At(0, 0), 1);
  CHECK(sender.WaitFor(kPatience));
  CHECK_EQ(sender.status.code(), Code::kDeadlineExceeded);
  receiver.Start(team, 1, program.At(1, 0), 1);
  CHECK(receiver.WaitFor(kPatience));
  CHECK(!receiver.status.ok());
  CHECK(!sender.touched() && !receiver.touched());
}

// A pull that cannot be cancelled keeps the operation open, until the process aborts.
TEST(engine_keeps_an_operation_open_while_a_transport_uses_its_memory) {
  Team team(Style::kProcesses, 2);
  team.SetOption("check_programs", "0");
  Team::Program program = team.Compile(std::vector<OpSpec>{SpecOf(Collective::kBcast, kCount, 0)});
  std::mutex mutex;
  std::condition_variable wake;
  std::string given_up;
  for (int rank : {0, 1}) {
    team.EngineOf(rank).SetAbortHandler(
        [&](const std::string& why) {
          const std::lock_guard<std::mutex> lock(mutex);
          given_up = why;
          wake.notify_all();
        },
        std::chrono::milliseconds(2000));
  }
  team.hub().holds_pulls = true;
  Visit sender, receiver;
  sender.Start(team, 0, program.At(0, 0), 1);
  receiver.Start(team, 1, program.At(1, 0), 1);
  const testing::Stopwatch watch;
  while (team.hub().held_pulls == 0 && watch.Seconds() < kPatience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  team.SetOption("timeout_seconds", "0.5");
  {
    std::unique_lock<std::mutex> lock(mutex);
    CHECK(wake.wait_for(lock, std::chrono::duration<double>(kPatience), [&] { return !given_up.empty(); }));
    CHECK(given_up.find("bcast(int32[1048576]") != std::string::npos);
    CHECK(given_up.find("still accesses the memory") != std::string::npos);
  }
  CHECK(!receiver.WaitFor(0));
  CHECK(sender.WaitFor(kPatience));   // its payload can be cancelled
  team.hub().holds_pulls = false;
  CHECK(receiver.WaitFor(kPatience));
  CHECK(!sender.touched() && !receiver.touched());
}

}  // namespace
}  // namespace jaxccomp
