// After a SIGINT (Ctrl-C), fails operations that make no progress, if the program's main thread is blocked.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "engine/engine_lock.h"
#include "execution/executor.h"
#include "execution/operations.h"
#include "execution/workers.h"

namespace jaxccomp {

// All members need the engine's lock.
class InterruptWatch {
 public:
  InterruptWatch(EngineLock* lock, Executor* executor, Operations* operations, Workers* workers)
      : lock_(*lock), executor_(*executor), operations_(*operations), workers_(*workers) {}

  // Engine::SetInterruptJudge.
  void SetJudge(std::function<bool()> is_held_up) { is_held_up_ = std::move(is_held_up); }
  // Call it while operations with other processes are open. Call it between operations too, so that an interrupt which
  // the program handles then does not end a later operation.
  void Check();

 private:
  // Ends the operations that wait. False: there are none.
  bool Interrupt();

  EngineLock& lock_;
  Executor& executor_;
  Operations& operations_;
  Workers& workers_;
  std::function<bool()> is_held_up_;
  uint64_t handled_ = 0;   // interrupts that the program's handler has got, or that have ended operations
  bool judging_ = false;
};

}  // namespace jaxccomp
