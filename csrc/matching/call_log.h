// Statistics of each call site in this process: rows for `jaxccomp.stats.log`.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "matching/call.h"

namespace jaxccomp {

// Bytes and time of one call, or sums over many.
struct CallCost {
  int64_t operand_bytes = 0;
  int64_t sent_bytes = 0;       // payload, encoded
  int64_t remote_bytes = 0;     // the part of sent_bytes that left the process
  int64_t received_bytes = 0;
  double seconds = 0;           // from the call to its end
  double wait_seconds = 0;      // part of `seconds` before the first message of another rank
};

// Counts of the finished calls of a call site.
struct CallCounts {
  static constexpr size_t kRecent = 64;

  void Add(const CallCost& cost, bool has_failed);
  // Over the last kRecent successful calls; 0 before the first.
  double MedianSeconds() const;

  int64_t calls = 0;
  int64_t failed = 0;           // of `calls`; `sum` has their bytes but not their seconds
  CallCost sum;
  double max_seconds = 0;
  std::array<float, kRecent> recent{};
};

// Call sites with equal texts share a row. So a program that is compiled twice, or that runs on several devices of this
// process, has one row per call.
struct CallRow {
  // From the program.
  Collective collective = Collective::kBarrier;
  std::string reduction;        // "sum", "mean"; empty without a reduction
  int64_t root = -1;
  std::string shapes, where, communicator, codec, requested_algorithm;
  int64_t ranks = 0;
  std::string_view backend = "native";   // or "mpi", "xla"
  std::string text;             // OpSpec::ToString; empty: call sites beyond kMaxRows
  // Of the last call.
  std::string_view algorithm;
  CallCounts counts;
};

// Used under the engine's lock.
class CallLog {
 public:
  static constexpr size_t kMaxRows = 4096;
  struct Snapshot {
    std::vector<CallRow> rows;                      // rows with calls
    std::chrono::system_clock::time_point since;    // start of the count
  };

  // Returns the row of the call site. Beyond kMaxRows rows, all other call sites share one.
  std::shared_ptr<CallRow> RowOf(const OpSpec& spec, const std::string& text);
  Snapshot Take() const;
  // Resets all counts, and drops rows that no call site uses.
  void Reset();

 private:
  // By text, communicator and ranks.
  std::unordered_map<std::string, std::shared_ptr<CallRow>> rows_;
  std::shared_ptr<CallRow> others_ = std::make_shared<CallRow>();
  std::chrono::system_clock::time_point since_ = std::chrono::system_clock::now();
};

}  // namespace jaxccomp
