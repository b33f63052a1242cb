// One step of progress for all operations of an engine.
#pragma once

#include <mutex>

#include "engine/library_operations.h"
#include "execution/executor.h"
#include "transport/transport_router.h"

namespace jaxccomp {

class Progress {
 public:
  Progress(TransportRouter* router, LibraryOperations* library, Executor* executor)
      : router_(*router), library_(*library), executor_(*executor) {}

  // Polls transports and libraries, and runs ready tasks. Releases `lock` during a large computation. Returns
  // whether it has done anything.
  bool Step(std::unique_lock<std::mutex>& lock) {
    bool any = router_.Poll();
    any |= library_.Poll();
    return executor_.Run(lock) || any;
  }

 private:
  TransportRouter& router_;
  LibraryOperations& library_;
  Executor& executor_;
};

}  // namespace jaxccomp
