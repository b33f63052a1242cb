// Operations that wait for too long: who is asked, when it is an error, and who is named in it.
//
// A rank that is behind is waited for as long as it goes on. Whoever is asked for an operation that it has
// not come to answers how many operations on that communicator it has ended (kBehind), and the deadline
// counts from when that last changed. In a collective this holds for every member that has not come,
// since those that have come may all be waiting for it, one after the other. A member that has come, or
// that has left the operation behind, prolongs nothing, nor does one that stands still.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "common/options.h"
#include "engine/deadlock_detector.h"
#include "engine/engine_lock.h"
#include "engine/failures.h"
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

  Watchdog(EngineLock* lock, const Options* options, Wire* wire, Executor* executor, Matcher* matcher,
           Operations* operations, Workers* workers, Failures* failures, DeadlockDetector* deadlocks)
      : lock_(*lock), options_(*options), wire_(*wire), executor_(*executor), matcher_(*matcher),
        operations_(*operations), workers_(*workers), failures_(*failures), deadlocks_(*deadlocks) {}

  // Engine::SetInterruptJudge.
  void SetInterruptJudge(std::function<bool()> is_held_up) { is_held_up_ = std::move(is_held_up); }
  // An exception in a callback has ended a program on a device of this process.
  void CallbackFailed(const std::string& what);
  // To be called often while operations are under way.
  void Check(Clock::time_point now) {
    CheckTimes(now);
    CheckPeers(now);
  }

 private:
  // The last exception in a callback, until what it has stranded is ended.
  struct CallbackFailure {
    Clock::time_point at;
    std::string what;
  };

  void CheckTimes(Clock::time_point now);
  // Less often: whether they have died, and whether a SIGINT waits for an operation to end.
  void CheckPeers(Clock::time_point now);
  void Interrupt();
  void Ask(Operation& op, bool everybody);
  // The members that an operation waits for and that have not come; where all of these have come
  // and wait themselves, all that have not come.
  std::string Blame(const Operation& op) const;
  void EndStrandedRuns(Clock::time_point now);

  EngineLock& lock_;
  const Options& options_;
  Wire& wire_;
  Executor& executor_;
  Matcher& matcher_;
  Operations& operations_;
  Workers& workers_;
  Failures& failures_;
  DeadlockDetector& deadlocks_;
  std::function<bool()> is_held_up_;
  std::optional<CallbackFailure> callback_failure_;
  Clock::time_point peers_checked_{};
  uint64_t interrupts_ = 0;
};

}  // namespace jaxccomp
