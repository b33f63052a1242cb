#include "engine/measurements.h"

#include <mutex>

#include "engine/engine_lock.h"

namespace jaxccomp {

using Lock = std::lock_guard<std::mutex>;

Stats Measurements::GetStats() const {
  const Lock lock(lock_.mutex);
  return stats_;
}

CallLog::Snapshot Measurements::GetCallLog() const {
  const Lock lock(lock_.mutex);
  return calls_.Take();
}

void Measurements::ResetStats() {
  const Lock lock(lock_.mutex);
  stats_ = {};
  calls_.Reset();
}

Trace::Clock::time_point Measurements::StartTrace() {
  const Lock lock(lock_.mutex);
  return trace_.Start();
}

std::vector<TraceEvent> Measurements::StopTrace() {
  const Lock lock(lock_.mutex);
  return trace_.Stop();
}

}  // namespace jaxccomp
