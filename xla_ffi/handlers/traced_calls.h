// Statistics of the calls that XLA runs without the engine (backend="xla").
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "engine/measurements.h"
#include "matching/call_log.h"

namespace jaxccomp {

// A call site of a program.
struct TracedSite {
  OpSpec spec;
  std::string text;              // of `spec`
  int64_t operand_bytes = 0;
  std::shared_ptr<CallRow> row;  // of TracedCalls; null before the first call
};

// Apart from the engine, because programs with only such calls have none. Thread-safe.
class TracedCalls {
 public:
  // The calls of this process.
  static TracedCalls& Get();

  void Count(TracedSite& site);
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
