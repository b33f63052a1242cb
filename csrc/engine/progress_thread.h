// The thread that drives operations when no caller does.
#pragma once

#include <mutex>
#include <thread>

#include "engine/engine_lock.h"
#include "engine/library_operations.h"
#include "engine/progress.h"
#include "engine/watchdog.h"
#include "execution/executor.h"
#include "execution/operations.h"
#include "transport/transport_router.h"

namespace jaxccomp {

class ProgressThread {
 public:
  ProgressThread(EngineLock* lock, TransportRouter* router, Executor* executor, LibraryOperations* library,
                 Operations* operations, Progress* progress, Watchdog* watchdog)
      : lock_(*lock), router_(*router), executor_(*executor), library_(*library), operations_(*operations),
        progress_(*progress), watchdog_(*watchdog) {}

  // Starts the thread, unless it runs. Throws std::system_error. With the engine's lock.
  void Ensure();
  // A large operation with another process has ended: its messages may still be in transit.
  void OnRemoteOver(Operation::Clock::time_point now) { last_remote_ = now; }
  // A caller has polled the transports, which may have disarmed the event descriptor. Wakes this thread, which arms the
  // descriptor again.
  void OnPolledElsewhere() {
    polled_elsewhere_ = true;
    if (sleeps_ && (sleeps_long_ || !operations_.empty())) lock_.wake.notify_one();
  }
  // Call it after the engine has stopped, without the lock.
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  using Clock = Operation::Clock;

  void Loop();
  // Polls while this process has no operation. Other processes depend on these polls: MPI ends a send only when its
  // receiver calls MPI often enough, and this process must receive probes and errors.
  void IdlePoll(std::unique_lock<std::mutex>& lock);

  // Sleeps until messages come or a caller of this process wakes it. Returns false at once if the transport has no
  // descriptor, or has messages.
  bool SleepUntilNews(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds maximum);

  EngineLock& lock_;
  TransportRouter& router_;
  Executor& executor_;
  LibraryOperations& library_;
  Operations& operations_;
  Progress& progress_;
  Watchdog& watchdog_;
  std::thread thread_;
  bool sleeps_ = false, sleeps_long_ = false;   // in SleepUntilNews
  bool polled_elsewhere_ = false;               // since IdlePoll
  Clock::time_point last_remote_{}, last_idle_{}, last_news_{};
  Clock::time_point drops_since_{};             // start of transfers without an operation; zero: none is open
};

}  // namespace jaxccomp
