// Deadlines. The watchdog probes the ranks that an operation waits for, fails the operation at its deadline, and
// forces the end of transfers that keep a failed operation open.
//
// The deadline of an operation counts from its last progress. The progress of ranks that are behind counts as well: a
// rank that is probed for an operation that it has not begun answers with the number of operations that it has ended
// on the communicator (kBehind), and a change of this number is progress. In a collective this holds for every member
// that has not begun the operation, because the awaited members may themselves wait for it. A member that has begun
// the operation, that has passed it, or that makes no progress does not extend the deadline.
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
#include "transport/transport_router.h"

namespace jaxccomp {

// All members need the engine's lock.
class Watchdog {
 public:
  using Clock = Operation::Clock;

  Watchdog(const Options* options, TransportRouter* router, Executor* executor, Matcher* matcher,
           Operations* operations, Workers* workers, Failures* failures, DeadlockDetector* deadlocks,
           StrandedRuns* stranded, InterruptWatch* interrupts);

  // Engine::SetAbortHandler.
  void SetAbortHandler(std::function<void(const std::string&)> abort, std::chrono::milliseconds after) {
    abort_ = std::move(abort);
    max_pinned_ = after;
  }
  // Call it often while operations are open.
  void Check(Clock::time_point now) {
    stranded_.Check(now);
    CheckTimes(now);
    CheckPeers(now);
  }

  // Call it from time to time while no operation is open.
  void CheckIdle() { interrupts_.Check(); }

 private:
  void CheckTimes(Clock::time_point now);
  void CheckPeers(Clock::time_point now);
  // Probes the members that `op` waits for. `everybody`: all members, if `op` is a collective.
  void Probe(Operation& op, bool everybody);
  // Reports `why` to all other ranks and ends the process.
  void AbortProcess(const std::string& why);

  const Options& options_;
  TransportRouter& router_;
  Executor& executor_;
  Matcher& matcher_;
  Operations& operations_;
  Workers& workers_;
  Failures& failures_;
  DeadlockDetector& deadlocks_;
  StrandedRuns& stranded_;
  InterruptWatch& interrupts_;
  Clock::time_point peers_checked_{};
  std::function<void(const std::string&)> abort_;
  std::chrono::milliseconds max_pinned_{10'000};   // Engine::SetAbortHandler
  bool aborting_ = false;
};

}  // namespace jaxccomp
