#include "engine/lock_watch.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>

namespace jaxccomp {
namespace {

constexpr double kLongestPause = 1, kPausesPerTimeout = 20;
// How long after callers were let go the call that holds all up may take to return, at most.
constexpr double kLongestGrace = 10;
constexpr int kStatus = 1;

std::string Shown(double seconds) { return std::to_string(static_cast<int64_t>(seconds + 0.5)) + " s"; }

std::string What(double seconds) {
  return "a call of CUDA or MPI that the engine has made has not returned for " + Shown(seconds);
}

constexpr const char* kAdvice =
    "Streams that wait for the host may be why (docs/gpus.md, \"Who waits\"): with the option "
    "device_wait=\"host\" there are none";

}  // namespace

void LockWatch::Ensure() {
  if (thread_.joinable() || state_.stopped) return;
  thread_ = std::thread([this] { Loop(); });
}

void LockWatch::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void LockWatch::Loop() {
  using Clock = std::chrono::steady_clock;
  pthread_setname_np(pthread_self(), "jaxccomp-watch");
  std::unique_lock lock(mutex_);
  uint64_t seen = state_.turns;
  Seconds stood{0};
  bool let_go = false;
  auto last = Clock::now();
  while (!stopped_) {
    const double timeout = timeout_seconds_;
    const Seconds pause(std::min(kLongestPause, timeout / kPausesPerTimeout));
    wake_.wait_for(lock, pause);
    const auto now = Clock::now();
    const Seconds passed = now - std::exchange(last, now);
    const uint64_t turns = state_.turns;
    if (turns != std::exchange(seen, turns) || state_.devices.waiting().empty()) {
      stood = Seconds(0);
      let_go = false;
      continue;
    }
    // Not more than it has looked: a process that was stopped from outside has not stood still.
    stood += std::min(passed, 2 * pause);
    if (stood.count() < timeout) continue;
    if (!std::exchange(let_go, true)) LetGo(stood);
    else if (stood.count() > timeout + std::min(kLongestGrace, timeout)) EndProcess(stood);
  }
}

void LockWatch::LetGo(Seconds stood) {
  counts_ = state_.devices.waiting().LetGo(
      {Code::kDeadlineExceeded, What(stood.count()) + ", and nothing goes on meanwhile. " + kAdvice});
}

void LockWatch::EndProcess(Seconds stood) const {
  std::string text = "jaxccomp: rank " + std::to_string(state_.wire.process()) + " of the world ends: " +
                     What(stood.count()) + ". ";
  if (counts_.written > 0) {
    text += std::to_string(counts_.written) +
            " operations could not be ended, as a device may still write to memory of their callers. ";
  }
  text += std::string(kAdvice) + "\n";
  // Neither stdio nor Python: the thread that is blocked may hold their locks.
  static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
  _exit(kStatus);
}

}  // namespace jaxccomp
