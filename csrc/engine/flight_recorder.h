// The flight recorder: the operations of this process that have ended last, and the open ones with the ranks that they
// wait for.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/status.h"
#include "execution/operations.h"
#include "matching/registry.h"
#include "transport/transport_router.h"

namespace jaxccomp {

// All members need the engine's lock.
class FlightRecorder {
 public:
  using Clock = Operation::Clock;
  static constexpr size_t kMaxEnded = 1000;

  FlightRecorder(const Registry* registry, const TransportRouter* router, const Operations* operations)
      : registry_(*registry), router_(*router), operations_(*operations) {}

  // Keeps the ranks that `op` waits for. Call it when `op` fails, before its transfers end.
  void OnFailed(const Operation& op);
  // Adds an operation that is over.
  void OnOver(const Operation& op, Clock::time_point now);
  // Adds a call that the engine has refused.
  void OnRefused(const std::shared_ptr<const std::string>& text, const Status& why);
  // Returns the operations as JSON, the latest last (jaxccomp/trace/_flight.py reads it). `reason`: why it is written.
  std::string ToJson(std::string_view reason) const;

 private:
  // No member of a slot allocates memory for an operation that has succeeded.
  struct Slot {
    std::shared_ptr<const std::string> text;     // of the call site
    const Communicator* communicator = nullptr;  // null: the call was refused. Communicators are never deleted
    MatchKey key;
    bool is_matched_by_key = false;              // other processes have operations with the same key
    int64_t operand_bytes = 0, sent_bytes = 0;
    Clock::time_point begun, ended;              // ended: the epoch while it is open
    Code code = Code::kOk;
    std::string error;
    std::vector<int> awaited;                    // ranks of the world
  };

  static void Describe(const Operation& op, Slot* slot);
  Slot& NextSlot();

  const Registry& registry_;
  const TransportRouter& router_;
  const Operations& operations_;
  std::vector<Slot> slots_;   // a ring; empty before the first operation ends
  uint64_t ended_ = 0;
  // Of operations that have failed and are not over.
  std::unordered_map<const Operation*, std::vector<int>> awaited_at_failure_;
};

}  // namespace jaxccomp
