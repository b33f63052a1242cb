// Operations that wait for too long: who is asked, and when it is an error; and failed ones whose memory is not
// given back: when that is forced.
//
// A rank that is behind is waited for as long as it goes on. Whoever is asked for an operation that it has
// not come to answers how many operations on that communicator it has ended (kBehind), and the deadline
// counts from when that last changed. In a collective this holds for every member that has not come,
// since those that have come may all be waiting for it, one after the other. A member that has come, or
// that has left the operation behind, prolongs nothing, nor does one that stands still.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "common/options.h"
#include "engine/deadlock_detector.h"
#include "engine/failures.h"
#include "engine/interrupt_watch.h"
#include "engine/stranded_runs.h"
#include "execution/executor.h"
#include "execution/operations.h"
#include "execution/workers.h"
#include "matching/matcher.h"
#include "transport/wire.h"

namespace jaxccomp {

// All members need the engine's lock.
class Watchdog {
 public:
  using Clock = Operation::Clock;

  Watchdog(const Options* options, Wire* wire, Executor* executor, Matcher* matcher, Operations* operations,
           Workers* workers, Failures* failures, DeadlockDetector* deadlocks, StrandedRuns* stranded,
           InterruptWatch* interrupts);

  // Engine::SetGiveUp.
  void SetGiveUp(std::function<void(const std::string&)> give_up, std::chrono::milliseconds after) {
    give_up_ = std::move(give_up);
    longest_held_ = after;
  }
  // To be called often while operations are under way.
  void Check(Clock::time_point now) {
    stranded_.Check(now);
    CheckTimes(now);
    CheckPeers(now);
  }

 private:
  void CheckTimes(Clock::time_point now);
  void CheckPeers(Clock::time_point now);
  void Ask(Operation& op, bool everybody);
  // The process ends, and all others are told why.
  void GiveUp(const std::string& why);

  const Options& options_;
  Wire& wire_;
  Executor& executor_;
  Matcher& matcher_;
  Operations& operations_;
  Workers& workers_;
  Failures& failures_;
  DeadlockDetector& deadlocks_;
  StrandedRuns& stranded_;
  InterruptWatch& interrupts_;
  Clock::time_point peers_checked_{};
  std::function<void(const std::string&)> give_up_;
  std::chrono::milliseconds longest_held_{10'000};   // Engine::SetGiveUp
  bool gives_up_ = false;
};

}  // namespace jaxccomp
