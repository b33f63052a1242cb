// Who looks after operations that have been queued: they end, or all their ranks get an error.
#include <algorithm>
#include <chrono>
#include <utility>

#include "nccl/backend.h"

namespace jaxccomp::nccl {
namespace {

constexpr auto kPause = std::chrono::milliseconds(2);
// How long a program that ends waits for the others to have done with NCCL.
constexpr double kPartingSeconds = 10;

std::chrono::steady_clock::time_point After(double seconds) {
  using Clock = std::chrono::steady_clock;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(seconds));
}

Status Prefixed(const std::string& text, const Status& status) {
  if (status.ok()) return status;
  return {status.code(), text + ": " + status.message()};
}

}  // namespace

void Backend::Fail(Team& team, const Status& why) {
  {
    std::lock_guard lock(team.mutex);
    if (team.broken.ok()) team.broken = why;
  }
  engine_->Break(team.communicator, why);
  // What spins on the device for this communicator ends, and its stream goes on.
  if (team.comm != nullptr) {
    const Driver::Current current(driver_, team.context);
    team.comm->Abort();
  }
}

void Backend::Watch() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const uint64_t seen = submitted_;
    lock.unlock();
    const bool any = PollOperations();
    lock.lock();
    if (any) wake_.wait_for(lock, kPause, [this] { return stopped_; });
    else wake_.wait(lock, [&] { return stopped_ || submitted_ != seen; });
  }
}

bool Backend::PollOperations() {
  std::vector<Team*> teams;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [key, team] : teams_) teams.push_back(team.get());
  }
  const double patience = engine_->timeout_seconds();
  bool any = false;
  for (Team* team : teams) {
    Status why;
    bool asks = false;
    {
      std::lock_guard lock(team->mutex);
      if (team->queued.empty()) continue;
      const Driver::Current current(driver_, team->context);
      while (!team->queued.empty() && why.ok()) {
        Queued& oldest = team->queued.front();
        Result<bool> over = driver_.IsOver(oldest.after);
        if (over.ok() && *over) {
          team->Release(oldest);
          team->queued.pop_front();
          continue;
        }
        why = Prefixed(oldest.text, over.status());
        if (!team->broken.ok()) break;
        if (why.ok() && !oldest.begun) {
          Result<bool> begun = driver_.IsOver(oldest.before);
          oldest.begun = begun.ok() && *begun;
          oldest.begun_at = Clock::now();
        }
        const std::chrono::duration<double> under_way = Clock::now() - oldest.begun_at;
        // A rank that has ended its program sends nothing by itself.
        if (oldest.begun && under_way.count() > oldest.asks_after) {
          asks = true;
          oldest.asks_after *= 2;
        }
        if (why.ok() && oldest.begun && under_way.count() > patience) {
          why = {Code::kDeadlineExceeded,
                 oldest.text + ": no end after " + std::to_string(patience) + " s on " +
                     team->names[static_cast<size_t>(team->seat.rank)] +
                     ". Some rank has not come to it, or has come to another one first: all ranks "
                     "must run the same collectives in the same order, also those of different "
                     "communicators. Or raise the timeout_seconds option"};
        }
        break;
      }
      if (team->queued.empty()) continue;
      any = true;
      if (!team->broken.ok()) continue;
      if (why.ok() && asks) engine_->Ask(team->communicator);
      if (why.ok()) why = engine_->StatusOf(team->communicator);
      if (why.ok()) why = Prefixed(team->queued.front().text, team->comm->Check());
    }
    if (!why.ok()) Fail(*team, why);
  }
  return any;
}

void Backend::Shutdown() {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
  }
  const auto until = After(std::min(kPartingSeconds, engine_->timeout_seconds()));
  while (PollOperations() && Clock::now() < until) std::this_thread::sleep_for(kPause);
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    wake_.notify_all();
  }
  if (watch_.joinable()) watch_.join();
  for (auto& [key, team] : teams_) {
    if (team->comm == nullptr) continue;
    const Driver::Current current(driver_, team->context);
    const bool whole = engine_->StatusOf(team->communicator).ok() && team->queued.empty();
    if (whole) team->comm->Finish(until);
    else team->comm->Abort();
    // CUDA keeps those that have not come yet for as long as it needs them.
    for (const Queued& each : team->queued) team->Release(each);
    team->queued.clear();
    for (void* event : team->events) driver_.DestroyEvent(event);
    team->events.clear();
  }
  for (auto& [context, lane] : lanes_) {
    const Driver::Current current(driver_, context);
    if (lane->event != nullptr) driver_.DestroyEvent(std::exchange(lane->event, nullptr));
  }
}

}  // namespace jaxccomp::nccl
