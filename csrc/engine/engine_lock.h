// The engine's lock, and the state of the threads that use it.
#pragma once

#include <mutex>

#include "engine/wakeup.h"

namespace jaxccomp {

// Hold the mutex to read or write the members below it.
struct EngineLock {
  std::mutex mutex;
  Wakeup wake;              // of the progress thread
  int polling_callers = 0;  // callers that poll the transports (Engine::Impl::Drive)
  bool stopped = false;     // by Engine::Shutdown
};

}  // namespace jaxccomp
