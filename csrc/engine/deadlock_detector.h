// Detects that two ranks wait for each other's messages for ever.
//
// A rank that waits for half a second sends a probe with its Standing to the rank that it waits for. The probed rank
// knows its own sends and receives, so it can tell whether the prober's operation needs something that it has not
// done yet. If its own operation in turn waits for the prober, it answers with that operation's Standing, and the
// prober makes the same check. If both checks hold, and each of the two programs calls one operation after the other,
// neither rank can go on: each needs an operation that its peer calls only after the one that waits.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>

#include "engine/engine_lock.h"
#include "engine/failures.h"
#include "execution/executor.h"
#include "execution/operations.h"
#include "execution/workers.h"
#include "matching/point_to_point_matching.h"
#include "matching/standing.h"
#include "transport/wire.h"

namespace jaxccomp {

// All members need the engine's lock.
class DeadlockDetector {
 public:
  DeadlockDetector(EngineLock* lock, Wire* wire, Executor* executor, PointToPointMatching* messages,
                   Operations* operations, Workers* workers, Failures* failures)
      : lock_(*lock), wire_(*wire), executor_(*executor), messages_(*messages), operations_(*operations),
        workers_(*workers), failures_(*failures) {}

  // Engine::SetCallsOneByOne.
  void SetCallsOneByOne(std::function<bool()> calls) { calls_one_by_one_ = std::move(calls); }
  // Probes the ranks that a waiting point-to-point operation waits for.
  void Ask(const Operation& op);
  void OnProbe(const Endpoint& endpoint, const Header& header, std::span<const std::byte> payload);
  void OnBlocked(const Header& header, std::span<const std::byte> payload);
  // Whether the endpoint has begun the operation that the prober waits for.
  bool HasCome(const Endpoint& endpoint, const Header& header,
               std::span<const std::byte> payload) const;

 private:
  // Whether no other operation in program order is open. If one thread calls all operations, none can then come
  // before this one is over.
  bool IsAlone(const Operation& op) const;
  // Calls `then` if one thread of the program calls all operations; finding out takes a while.
  void IfOneByOne(std::function<void()> then);
  Standing StandingTowards(const Operation& op, int peer) const;
  void SendProbes(const Operation& op, bool alone);
  // Whether this member has done its part for an operation of `peer` with that standing. Also true if it may have done
  // so: a message may still be in transit.
  bool HasServed(const Endpoint& endpoint, int peer, const Standing& standing) const;
  // Whether an operation of `peer` with that standing can only continue after this member has called another operation.
  bool HoldsUp(const Endpoint& endpoint, int peer, const Standing& standing) const;
  // This member's operation that waits for `peer`, if the peer's operation with that standing can only continue after
  // this member has called another operation. Null if there is none, or if this member has several open operations.
  const Operation* WhoWaitsFor(const Endpoint& endpoint, int peer, const Standing& standing) const;
  // Fails a receive from the rank itself for which no message can come.
  void CheckOwnMessages(Operation* op);

  EngineLock& lock_;
  Wire& wire_;
  Executor& executor_;
  PointToPointMatching& messages_;
  Operations& operations_;
  Workers& workers_;
  Failures& failures_;
  std::function<bool()> calls_one_by_one_;
};

}  // namespace jaxccomp
