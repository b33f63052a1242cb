#include "engine/measurements.h"

#include <mutex>

#include "engine/engine_lock.h"
#include "engine/flight_recorder.h"

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

int64_t Measurements::CountOpen(Trace::Clock::time_point time) const {
  const Lock lock(lock_.mutex);
  int64_t count = 0;
  operations_.Each([&](const Operation& op) { count += !op.over() && op.liveness.begun < time; });
  return count;
}

std::string Measurements::GetFlight() const {
  const Lock lock(lock_.mutex);
  return flight_recorder_.ToJson("");
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

Recording Measurements::StopTrace() {
  const Lock lock(lock_.mutex);
  return trace_.Stop();
}

}  // namespace jaxccomp
