// Statistics, the call log, the trace and the flight recorder of an engine.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "execution/operations.h"
#include "execution/stats.h"
#include "execution/trace.h"
#include "matching/call_log.h"

namespace jaxccomp {

class FlightRecorder;
struct EngineLock;

// All members take the engine's lock.
class Measurements {
 public:
  Measurements(EngineLock* lock, Stats* stats, CallLog* calls, Trace* trace, const Operations* operations,
               const FlightRecorder* flight_recorder)
      : lock_(*lock), stats_(*stats), calls_(*calls), trace_(*trace), operations_(*operations),
        flight_recorder_(*flight_recorder) {}

  Stats GetStats() const;
  CallLog::Snapshot GetCallLog() const;
  // Number of operations that have begun before `time` and are not over.
  int64_t CountOpen(Trace::Clock::time_point time) const;
  // Returns the latest operations and the open ones as JSON (FlightRecorder).
  std::string GetFlight() const;
  // Resets the statistics and the call log.
  void ResetStats();
  // Records the tasks of all operations that begin from now on, until StopTrace. Returns the start time.
  Trace::Clock::time_point StartTrace();
  Recording StopTrace();

 private:
  EngineLock& lock_;
  Stats& stats_;
  CallLog& calls_;
  Trace& trace_;
  const Operations& operations_;
  const FlightRecorder& flight_recorder_;
};

}  // namespace jaxccomp
