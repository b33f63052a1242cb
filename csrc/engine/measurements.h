// What an engine has counted and recorded.
#pragma once

#include <mutex>
#include <vector>

#include "engine/engine_lock.h"
#include "execution/stats.h"
#include "execution/trace.h"
#include "matching/call_log.h"

namespace jaxccomp {

// All members take the engine's lock.
class Measurements {
 public:
  Measurements(EngineLock* lock, Stats* stats, CallLog* calls, Trace* trace)
      : lock_(*lock), stats_(*stats), calls_(*calls), trace_(*trace) {}

  Stats GetStats() const {
    const Lock lock(lock_.mutex);
    return stats_;
  }
  CallLog::Snapshot GetCallLog() const {
    const Lock lock(lock_.mutex);
    return calls_.Take();
  }
  // Both begin anew.
  void ResetStats() {
    const Lock lock(lock_.mutex);
    stats_ = {};
    calls_.Reset();
  }
  // Records all tasks until StopTrace. Operations that run at the start are left out. Returns when that was.
  Trace::Clock::time_point StartTrace() {
    const Lock lock(lock_.mutex);
    return trace_.Start();
  }
  std::vector<TraceEvent> StopTrace() {
    const Lock lock(lock_.mutex);
    return trace_.Stop();
  }

 private:
  using Lock = std::lock_guard<std::mutex>;

  EngineLock& lock_;
  Stats& stats_;
  CallLog& calls_;
  Trace& trace_;
};

}  // namespace jaxccomp
