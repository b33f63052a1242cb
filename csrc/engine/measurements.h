// Statistics, the call log and the trace of an engine.
#pragma once

#include <vector>

#include "execution/stats.h"
#include "execution/trace.h"
#include "matching/call_log.h"

namespace jaxccomp {

struct EngineLock;

// All members take the engine's lock.
class Measurements {
 public:
  Measurements(EngineLock* lock, Stats* stats, CallLog* calls, Trace* trace)
      : lock_(*lock), stats_(*stats), calls_(*calls), trace_(*trace) {}

  Stats GetStats() const;
  CallLog::Snapshot GetCallLog() const;
  // Resets the statistics and the call log.
  void ResetStats();
  // Records the tasks of all operations that begin from now on, until StopTrace. Returns the start time.
  Trace::Clock::time_point StartTrace();
  std::vector<TraceEvent> StopTrace();

 private:
  EngineLock& lock_;
  Stats& stats_;
  CallLog& calls_;
  Trace& trace_;
};

}  // namespace jaxccomp
