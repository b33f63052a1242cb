// One step of all that an engine has under way.
#pragma once

#include <mutex>

#include "engine/library_operations.h"
#include "execution/executor.h"
#include "transport/wire.h"

namespace jaxccomp {

class Progress {
 public:
  Progress(Wire* wire, LibraryOperations* library, Executor* executor)
      : wire_(*wire), library_(*library), executor_(*executor) {}

  // Goes on with whatever can, giving up `lock` during a large computation. True when anything was done.
  bool Step(std::unique_lock<std::mutex>& lock) {
    bool any = wire_.Poll();
    any |= library_.Poll();
    return executor_.Run(lock) || any;
  }

 private:
  Wire& wire_;
  LibraryOperations& library_;
  Executor& executor_;
};

}  // namespace jaxccomp
