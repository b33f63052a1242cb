// What each call site has done in this process: rows for `jaxccomp.stats.log`.
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

// What one call has moved, and how long it took; or many, summed.
struct CallCost {
  int64_t operand_bytes = 0;
  int64_t sent_bytes = 0;       // payload, as coded
  int64_t remote_bytes = 0;     // the part of sent_bytes that left the process
  int64_t received_bytes = 0;
  double seconds = 0;           // from the call to its end
  double wait_seconds = 0;      // of these, before the first message of another rank was here
};

// The calls of a call site that are over.
struct CallCounts {
  static constexpr size_t kRecent = 64;

  void Add(const CallCost& cost, bool has_failed);
  // Of the last kRecent calls that have not failed; 0 before the first.
  double MedianSeconds() const;

  int64_t calls = 0;
  int64_t failed = 0;           // of these; bytes of theirs count, seconds do not
  CallCost sum;
  double most_seconds = 0;
  std::array<float, kRecent> recent{};
};

// Rows of call sites that look alike are one: of one that is compiled twice, and of all devices here.
struct CallRow {
  // What the program says.
  Collective collective = Collective::kBarrier;
  std::string reduction;        // "sum", "mean"; empty where nothing is reduced
  int64_t root = -1;
  std::string shapes, where, communicator, codec, asked_algorithm;
  int64_t ranks = 0;
  bool mpi = false;             // by MPI's own collectives
  std::string text;             // OpSpec::ToString; empty: call sites beyond kMostRows
  // What runs: of the last call.
  std::string_view algorithm;
  CallCounts counts;
};

// Used under the engine's lock.
class CallLog {
 public:
  static constexpr size_t kMostRows = 4096;
  struct Snapshot {
    std::vector<CallRow> rows;                      // those with calls
    std::chrono::system_clock::time_point since;    // when the counting has begun
  };

  // Its row, or, where there are kMostRows already, the one that all others share.
  std::shared_ptr<CallRow> RowOf(const OpSpec& spec, const std::string& text);
  Snapshot Take() const;
  // Begins anew, and forgets rows that no call site has any more.
  void Reset();

 private:
  // By text, communicator and ranks.
  std::unordered_map<std::string, std::shared_ptr<CallRow>> rows_;
  std::shared_ptr<CallRow> others_ = std::make_shared<CallRow>();
  std::chrono::system_clock::time_point since_ = std::chrono::system_clock::now();
};

}  // namespace jaxccomp
