// Statistics of the calls that XLA runs without the engine (backend="xla").
#pragma once

#include <cstdint>
#include <mutex>

#include "engine/measurements.h"
#include "matching/call_log.h"

namespace jaxccomp {

// Apart from the engine, because programs with only such calls have none. Thread-safe.
class TracedCalls {
 public:
  // The calls of this process.
  static TracedCalls& Get();

  // `bytes`: of the operands.
  void Count(const OpSpec& spec, int64_t bytes);
  // Only calls and value_bytes are known.
  Stats GetStats() const;
  CallLog::Snapshot GetCallLog() const;
  void Reset();

 private:
  mutable std::mutex mutex_;
  Stats stats_{};
  CallLog calls_;
};

}  // namespace jaxccomp
