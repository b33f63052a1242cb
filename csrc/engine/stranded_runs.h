// Ends launches that an exception in a Python callback has stranded. The exception ends a program on one device of a
// process. The other devices then wait for this device in an operation within the process.
#pragma once

#include <optional>
#include <string>

#include "engine/engine_lock.h"
#include "execution/executor.h"
#include "execution/operations.h"
#include "matching/matcher.h"

namespace jaxccomp {

// All members need the engine's lock.
class StrandedRuns {
 public:
  using Clock = Operation::Clock;

  StrandedRuns(EngineLock* lock, Executor* executor, Matcher* matcher, Operations* operations)
      : lock_(*lock), executor_(*executor), matcher_(*matcher), operations_(*operations) {}

  void CallbackFailed(const std::string& what);
  // Fails the stranded operations. Call it often.
  void Check(Clock::time_point now);

 private:
  // The last exception in a callback, until it is forgotten (kForgetsCallbackAfter).
  struct CallbackFailure {
    Clock::time_point at;
    std::string what;
  };

  EngineLock& lock_;
  Executor& executor_;
  Matcher& matcher_;
  Operations& operations_;
  std::optional<CallbackFailure> callback_failure_;
};

}  // namespace jaxccomp
