// Detects that two ranks wait for each other's messages for ever.
//
// If an operation makes no progress for half a second, its rank sends a probe with the operation's WaitForEdge (its
// wait-for edge) to each rank that the operation waits for. The probed rank knows its own sends and receives, so it can
// check whether the prober's operation needs a send or receive that the probed rank has not called. If the probed
// rank's only open operation waits for the prober, the probed rank answers with the WaitForEdge of that operation
// (kBlocked), and the prober makes the same check. If both checks hold, and one thread of each program calls all
// operations, neither rank can continue: each needs an operation that its peer calls only after its waiting one.
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
#include "matching/wait_for_edge.h"
#include "transport/transport_router.h"

namespace jaxccomp {

// All members need the engine's lock.
class DeadlockDetector {
 public:
  DeadlockDetector(EngineLock* lock, TransportRouter* router, Executor* executor, PointToPointMatching* messages,
                   Operations* operations, Workers* workers, Failures* failures)
      : lock_(*lock), router_(*router), executor_(*executor), messages_(*messages), operations_(*operations),
        workers_(*workers), failures_(*failures) {}

  // Engine::SetCallsOneByOne.
  void SetCallsOneByOne(std::function<bool()> calls) { calls_one_by_one_ = std::move(calls); }
  // Probes the ranks that a waiting point-to-point operation waits for.
  void Probe(const Operation& op);
  void OnProbe(const Endpoint& endpoint, const Header& header, std::span<const std::byte> payload);
  void OnBlocked(const Header& header, std::span<const std::byte> payload);
  // Whether the endpoint has begun the prober's collective, or has done its part of the prober's send or receive.
  bool HasCome(const Endpoint& endpoint, const Header& header,
               std::span<const std::byte> payload) const;

 private:
  // Whether `op` is the only open operation in program order. If so, and if one thread calls all operations, the
  // program calls no other operation before `op` is over.
  bool IsAlone(const Operation& op) const;
  // Calls `then` if one thread of the program calls all operations. Both run on a worker, because the check may wait
  // for the GIL.
  void IfOneByOne(std::function<void()> then);
  WaitForEdge EdgeTowards(const Operation& op, int peer) const;
  void SendProbes(const Operation& op, bool alone);
  // Whether this member has done its part of the operation of `peer` that `edge` describes: it has taken the message of
  // `peer`, or has sent one that had not arrived when `peer` made the edge. That message may still be in transit, or may
  // have another tag.
  bool HasServed(const Endpoint& endpoint, int peer, const WaitForEdge& edge) const;
  // Whether the operation of `peer` that `edge` describes can only continue after this member has called another one.
  // Not the opposite of HasServed: both are false while the message of `peer` is in transit.
  bool Blocks(const Endpoint& endpoint, int peer, const WaitForEdge& edge) const;
  // Returns this member's operation that waits for `peer`, if no other operation is open here and Blocks is true.
  // Otherwise null.
  const Operation* FindWaiter(const Endpoint& endpoint, int peer, const WaitForEdge& edge) const;
  // Fails a receive from this rank itself if the rank has not sent the message. Call it only if `op` is alone.
  void CheckOwnMessages(Operation* op);

  EngineLock& lock_;
  TransportRouter& router_;
  Executor& executor_;
  PointToPointMatching& messages_;
  Operations& operations_;
  Workers& workers_;
  Failures& failures_;
  std::function<bool()> calls_one_by_one_;
};

}  // namespace jaxccomp
