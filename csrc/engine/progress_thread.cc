#include "engine/progress_thread.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "common/interrupts.h"

namespace jaxccomp {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How long messages of an operation may be in transit after its end.
constexpr auto kAttentive = milliseconds(20);
constexpr auto kAttentivePause = microseconds(200);
// If one operation follows another, their callers poll. Each wake-up of this thread then costs a caller about 40 us if
// both share a core.
constexpr auto kPauseAmongCalls = microseconds(1'000);
// Some MPIs advance a large message only inside calls, and need many calls for each message.
constexpr auto kTransferPause = microseconds(50);
// How long an idle process without news polls every kTransferPause, to receive and drop the payloads of a failed
// operation. Meanwhile the peer's memory is pinned. After 10 s the peer ends its process (Engine::SetAbortHandler).
constexpr auto kDropping = std::chrono::seconds(10);
// How long an idle process polls every kAttentivePause after a message, if no large operation has ended for as long:
// MPI may still have to acknowledge a peer's payload, and moves one packet per call.
constexpr auto kAfterNews = std::chrono::seconds(1);
// Pauses of an idle process. They grow while nothing comes, so that polling costs nearly nothing and no peer waits
// long.
constexpr auto kShortestPause = microseconds(10'000);
constexpr auto kLongestPause = microseconds(50'000);
constexpr int kPausesPerQuietTime = 100;
// The longest pause if the transport wakes the thread.
constexpr auto kLongestSleep = milliseconds(1'000);
// How often open operations are checked (Watchdog).
constexpr auto kWatchPause = milliseconds(20);
// How often the thread polls in a row between chunks on a slow link before it pauses. A hundred polls took up to half
// of the processor time of a broadcast and did not speed it up.
constexpr int kLooksInARow = 10;

}  // namespace

void ProgressThread::Ensure() {
  if (thread_.joinable() || lock_.stopped) return;
  WatchInterrupts();
  thread_ = std::thread([this] { Loop(); });
}

void ProgressThread::Loop() {
  pthread_setname_np(pthread_self(), "jaxccomp");
  std::unique_lock<std::mutex> lock(lock_.mutex);
  auto last_check = Clock::now();
  int64_t idle = 0;
  while (!lock_.stopped) {
    if (operations_.empty() && !executor_.HasWork()) {
      if (router_.HasRemote()) {
        IdlePoll(lock);
      } else {
        lock_.wake.wait(lock);
      }
      idle = 0;
      continue;
    }
    const auto now = Clock::now();
    if (now - last_check > kWatchPause) {
      last_check = now;
      watchdog_.Check(now);
    }
    if (lock_.polling_callers > 0 && !executor_.HasWork()) {
      lock_.wake.wait_for(lock, microseconds(200));
      continue;
    }
    if (progress_.Step(lock)) {
      idle = 0;
      lock.unlock();  // lets waiting callers take the lock
      lock.lock();
      continue;
    }
    ++idle;
    if (operations_.remote_count() == 0) {
      lock_.wake.wait_for(lock, kWatchPause);  // all peers are in this process, and their callers wake this thread
    } else if (idle < kLooksInARow) {
      lock.unlock();
      sched_yield();
      lock.lock();
    } else if (library_.HasRunning() || !SleepUntilNews(lock, kWatchPause)) {
      const bool transfers = router_.HasRemoteTransfers() || library_.HasRunning();
      lock_.wake.wait_for(lock, idle < 1000 || transfers ? kTransferPause : 10 * kTransferPause);
    }
  }
}

bool ProgressThread::SleepUntilNews(std::unique_lock<std::mutex>& lock, milliseconds maximum) {
  Transport* const remote = router_.remote();
  const int descriptor = remote == nullptr ? -1 : remote->EventDescriptor();
  if (descriptor < 0 || !remote->Arm()) return false;
  sleeps_ = true;
  sleeps_long_ = maximum > kWatchPause;
  lock_.wake.WaitFor(lock, maximum, descriptor);
  sleeps_ = sleeps_long_ = false;
  return true;
}

void ProgressThread::IdlePoll(std::unique_lock<std::mutex>& lock) {
  if (lock_.polling_callers == 0 && router_.Poll()) {
    // Poll again: more messages may have come, such as an error behind hundreds of announcements.
    last_news_ = Clock::now();
    lock.unlock();
    lock.lock();
    return;
  }
  watchdog_.CheckIdle();
  const auto now = Clock::now();
  const auto quiet = now - last_remote_;
  const bool callers_poll = last_remote_ > last_idle_;
  last_idle_ = now;
  // Callers that make one call after another poll themselves, and each wake-up of this thread costs them time. So this
  // thread does not wait on the event descriptor while callers poll.
  const bool among_calls = std::exchange(polled_elsewhere_, false) || callers_poll;
  const auto maximum = std::min(kLongestSleep, router_.remote()->PollsEvery());
  if (!among_calls && SleepUntilNews(lock, maximum)) return;
  if (!router_.HasRemoteTransfers()) {
    drops_since_ = {};
  } else {
    if (drops_since_ == Clock::time_point()) drops_since_ = now;
    if (now - std::max(drops_since_, last_news_) < kDropping) {
      lock_.wake.wait_for(lock, kTransferPause);
      return;
    }
  }
  if (!among_calls && quiet > kAfterNews && now - last_news_ < kAfterNews) {
    lock_.wake.wait_for(lock, kAttentivePause);
    return;
  }
  const auto pause = std::chrono::duration_cast<microseconds>(quiet / kPausesPerQuietTime);
  lock_.wake.wait_for(lock, quiet >= kAttentive ? std::clamp(pause, kShortestPause, kLongestPause)
                             : callers_poll      ? kPauseAmongCalls
                                                 : kAttentivePause);
}

}  // namespace jaxccomp
