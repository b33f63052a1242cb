// Threads for computations, started when computations wait. One thread always runs large computations. If cores are
// free, more threads encode and decode chunks of several peers in parallel. Meanwhile the progress thread polls the
// transports.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/engine_lock.h"
#include "execution/executor.h"
#include "matching/registry.h"

namespace jaxccomp {

class CoderThreads {
 public:
  CoderThreads(EngineLock* lock, Registry* registry, Executor* executor)
      : lock_(*lock), registry_(*registry), executor_(*executor) {}

  // Sets the maximum number of threads to `requested`; -1: to the cores per rank minus one, at most 4. At 0, one thread
  // runs large computations only. With the engine's lock.
  void SetMax(int64_t requested);
  void SetRanksOnHost(int ranks);
  // See Executor::Listener. With the engine's lock.
  void OnBacklog(bool large);
  // Call it after the engine has stopped, without the lock.
  void Join();

 private:
  void Loop();
  void Count();

  EngineLock& lock_;
  Registry& registry_;
  Executor& executor_;
  std::vector<std::thread> threads_;   // started when there is a backlog
  int64_t requested_ = -1;
  int ranks_on_host_ = 1;
  size_t max_threads_ = 0;
  std::condition_variable wake_;
};

}  // namespace jaxccomp
