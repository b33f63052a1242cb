// The engine's own threads: who drives operations when no caller does, and how all of it ends.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "common/forks.h"
#include "runtime/engine_impl.h"
#include "runtime/memory.h"

namespace jaxccomp {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How long after an operation messages of it may be under way still.
constexpr auto kAttentive = milliseconds(20);
// How often an idle process looks for messages: the longer nothing came the less often, so that it
// costs nearly nothing, and yet nobody who needs it waits long.
constexpr auto kShortestPause = microseconds(10'000);
constexpr auto kLongestPause = microseconds(50'000);
constexpr int kPausesPerQuietTime = 100;
// How long a process that ends after an error waits for the others to end; others may be dead.
constexpr double kPartingSecondsAfterAnError = 10;

}  // namespace

void Engine::Impl::ProgressLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  auto last_check = Clock::now();
  int64_t idle = 0;
  while (!stopped_) {
    if (operations_.empty() && !executor_.HasWork() && !executor_.AwaitsDevices()) {
      if (wire_.HasRemote()) {
        Attend(lock);
      } else {
        wake_.wait(lock);
      }
      idle = 0;
      continue;
    }
    const auto now = Clock::now();
    if (now - last_check > milliseconds(20)) {
      last_check = now;
      CheckTimes(now);
      CheckPeers(now);
    }
    if (inline_drivers_ > 0 && !executor_.HasWork()) {
      wake_.wait_for(lock, microseconds(200));
      continue;
    }
    if (Step(lock)) {
      idle = 0;
      lock.unlock();  // callers come first
      lock.lock();
      continue;
    }
    ++idle;
    const bool awaits_devices = executor_.AwaitsDevices();
    if (operations_.remote_count() == 0 && !awaits_devices) {
      wake_.wait_for(lock, milliseconds(20));  // only callers can bring news
    } else if (idle < 100) {
      lock.unlock();
      sched_yield();
      lock.lock();
    } else {
      // Some MPIs move a large message along only when they are called, many times for each.
      const bool transfers = wire_.HasRemoteTransfers() || awaits_devices;
      wake_.wait_for(lock, microseconds(idle < 1000 || transfers ? 50 : 500));
    }
  }
}

// While this process has nothing to do. Others may need it all the same: MPI ends a send only when
// its receiver calls MPI often enough, and probes and errors want to be heard.
void Engine::Impl::Attend(std::unique_lock<std::mutex>& lock) {
  if (inline_drivers_ == 0) wire_.Poll();
  const auto quiet = Clock::now() - last_remote_;
  const auto pause = std::chrono::duration_cast<microseconds>(quiet / kPausesPerQuietTime);
  wake_.wait_for(lock, quiet < kAttentive ? microseconds(200)
                                          : std::clamp(pause, kShortestPause, kLongestPause));
}

// Large chunks of several peers are coded on several cores while the progress thread tends the wire.
void Engine::Impl::CoderLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    coder_wake_.wait(lock, [&] { return stopped_ || executor_.HasComputations(); });
    if (stopped_) return;
    executor_.Run(lock);
  }
}

void Engine::Impl::OnBacklog() {
  if (stopped_ || most_coders_ == 0) return;
  if (coders_.size() < most_coders_) coders_.emplace_back([this] { CoderLoop(); });
  coder_wake_.notify_one();
}

void Engine::Impl::SetCoders(int64_t asked, int ranks_on_host) {
  constexpr int kMostLeftOver = 4;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const int count = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  // The ranks of a lone process are threads, each of which computes.
  const int left_over = processes_ == 1 ? 0 : count / std::max(ranks_on_host, 1) - 1;
  most_coders_ = static_cast<size_t>(asked >= 0 ? asked : std::clamp(left_over, 0, kMostLeftOver));
}

void Engine::Impl::Shutdown() {
  if (IsForkedChild()) return;
  std::unique_lock<std::mutex> lock(mutex_);
  if (stopped_) return;
  stopped_ = true;
  // Who waits for this rank is told, at once or when it asks.
  std::set<const Communicator*> busy;
  double patience_seconds = options_.timeout_seconds;
  if (announced_ || !peers_.gone().empty()) {
    patience_seconds = std::min(patience_seconds, kPartingSecondsAfterAnError);
  }
  const std::string me = "rank " + std::to_string(wire_.process()) + " of the world";
  operations_.Each([&](const Operation& op) {
    if (!op.over) busy.insert(op.endpoint->communicator);
  });
  for (Communicator* comm : registry_.All()) {
    if (!comm->broken.ok()) {
      patience_seconds = std::min(patience_seconds, kPartingSecondsAfterAnError);
    }
    Break(*comm, {Code::kAborted, me + " has ended its program"},
          busy.contains(comm) && !announced_);
  }
  wake_.notify_all();
  while (inline_drivers_ > 0) wake_.wait(lock);
  lock.unlock();
  if (progress_.joinable()) progress_.join();
  coder_wake_.notify_all();
  for (std::thread& coder : coders_) coder.join();
  coders_.clear();
  lock.lock();
  const milliseconds patience(static_cast<int64_t>(patience_seconds * 1000));
  const bool devices_done = executor_.DrainDevices(lock, patience);
  // Which ends the last transfers, and with them their operations.
  wire_.Close(patience);
  executor_.ForgetDevices();
  // What a device may still touch.
  const std::vector<MatchKey> computing = operations_.KeysOf(
      [&](const Operation& op) { return !devices_done && op.computing > 0; });
  operations_.EachOf(computing, [&](Operation& op) {
    if (op.on_done != nullptr) {
      workers_.Run([done = std::move(op.on_done), status = op.status] { done(status); });
    }
    KeepForEver(operations_.Release(&op));
  });
  lock.unlock();
  workers_.Stop();
}

}  // namespace jaxccomp
