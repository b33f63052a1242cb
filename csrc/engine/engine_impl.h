// The engine's implementation: passes operations through its parts, each of which owns its state. All members need
// the engine's lock, except for Start and Shutdown, which take it, and CheckLaunches.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/options.h"
#include "engine/coder_threads.h"
#include "engine/deadlock_detector.h"
#include "engine/engine.h"
#include "engine/engine_lock.h"
#include "engine/failures.h"
#include "engine/flight_recorder.h"
#include "engine/flight_writer.h"
#include "engine/interrupt_watch.h"
#include "engine/library_operations.h"
#include "engine/measurements.h"
#include "engine/membership.h"
#include "engine/peer_messages.h"
#include "engine/point_to_point.h"
#include "engine/program_comparison.h"
#include "engine/progress.h"
#include "engine/progress_thread.h"
#include "engine/stranded_runs.h"
#include "engine/watchdog.h"
#include "execution/executor.h"
#include "execution/operations.h"
#include "execution/stats.h"
#include "execution/workers.h"
#include "matching/call_log.h"
#include "matching/matcher.h"
#include "matching/point_to_point_matching.h"
#include "matching/registry.h"
#include "transport/transport_router.h"

namespace jaxccomp {

class Engine::Impl final : private Executor::Listener {
 public:
  using Clock = Operation::Clock;

  Impl(int process, int processes);
  ~Impl() { Shutdown(); }

  std::optional<Status> Start(CallSite& site, Call call, const std::function<Done()>& later);
  void Shutdown();
  // Sets the function that returns each launch's place.
  void CheckLaunches(std::function<std::string()> place);
  // Applies changed options. With the lock.
  void OnOptions();

 private:
  friend class Engine;

  // Executor::Listener
  void OnOver(Operation* op) override;
  void OnFailed(Operation* op) override;
  void OnBacklog(bool large) override { coders_.OnBacklog(large); }

  Result<Operation*> Post(CallSite& site, Call call);
  Result<Endpoint*> EndpointOf(CallSite& site, int64_t device);
  void FillHeader(Operation* op, const CallSite& site) const;
  void Begin(Operation* op);
  // Advances the caller's operation on the caller's thread, for up to kLongestInline, as long as it makes progress.
  // Drive never waits for long, so operations that XLA starts in different orders on different ranks cannot block each
  // other.
  void Drive(Operation* op, std::unique_lock<std::mutex>& lock);
  void Recycle(Operation* op);
  const std::shared_ptr<CallRow>& RowOf(CallSite& site);
  // Adds a finished operation to the row of its call site.
  void CountCall(Operation* op);
  // Starts the threads that every operation may need. Returns an error if the system cannot start one.
  Status StartThreads();
  // Waits up to kLibraryParts for open operations of a library of collectives, then stops calling the library. Call it
  // before the transports are closed.
  void LeaveLibrary(std::unique_lock<std::mutex>& lock);

  EngineLock lock_;
  Options options_;
  Stats stats_{};
  CallLog calls_;
  Registry registry_;
  TransportRouter router_;
  Executor executor_;
  LibraryOperations library_;
  Matcher matcher_;
  PointToPointMatching messages_;
  Operations operations_;
  Workers workers_;
  Progress step_;
  FlightRecorder flight_recorder_;
  FlightWriter flight_writer_;
  Failures failures_;
  PointToPoint point_to_point_;
  DeadlockDetector deadlocks_;
  ProgramComparison comparison_;
  PeerMessages peer_messages_;
  StrandedRuns stranded_;
  InterruptWatch interrupts_;
  Watchdog watchdog_;
  ProgressThread progress_;
  CoderThreads coders_;
  Membership membership_;
  Measurements measurements_;
  bool has_threads_ = false;   // StartThreads has succeeded
  std::function<std::string()> place_of_launch_;   // set once, before checks_launches_
  std::atomic<bool> checks_launches_ = false;
  // Copies of the options, to be read without the lock.
  std::atomic<bool> huge_pages_, retain_memory_;
};

}  // namespace jaxccomp
