// The engine's lock, and who holds or awaits it.
#pragma once

#include <mutex>

#include "engine/wakeup.h"

namespace jaxccomp {

// What follows the mutex needs it.
struct EngineLock {
  std::mutex mutex;
  Wakeup wake;              // of the progress thread
  int polling_callers = 0;  // callers that drive their operation themselves
  bool stopped = false;     // by Engine::Shutdown
};

}  // namespace jaxccomp
