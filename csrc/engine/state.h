// What the parts of the engine share. Everything here needs the engine's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "common/options.h"
#include "engine/library_operations.h"
#include "engine/wakeup.h"
#include "execution/executor.h"
#include "execution/operations.h"
#include "execution/stats.h"
#include "execution/workers.h"
#include "matching/call_log.h"
#include "matching/matcher.h"
#include "matching/point_to_point_matching.h"
#include "matching/registry.h"
#include "transport/transport.h"
#include "transport/wire.h"

namespace jaxccomp {

struct EngineState {
  using Clock = Operation::Clock;

  EngineState(int process, int processes, Receiver* receiver, Executor::Listener* listener);

  void Discard(Announced announced) {
    if (announced.process >= 0) wire.Discard(announced);
  }
  // Goes on with whatever can. True when anything was done.
  bool Step(std::unique_lock<std::mutex>& lock) {
    bool any = wire.Poll();
    any |= library.Poll();
    return executor.Run(lock) || any;
  }

  int processes;   // of the world; more come where the transport can add them
  std::mutex mutex;
  Wakeup wake;   // of the progress thread
  int inline_drivers = 0;         // callers that drive their operation themselves
  bool stopped = false;
  Options options;
  Stats stats{};
  CallLog calls;
  Registry registry;
  Wire wire;
  Executor executor;
  LibraryOperations library;
  Matcher matcher;
  PointToPointMatching messages;
  Operations operations;
  Workers workers;
};

inline std::string_view TextOf(std::span<const std::byte> payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

}  // namespace jaxccomp
