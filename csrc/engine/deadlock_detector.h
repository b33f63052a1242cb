// How it is found that two ranks wait for each other's messages for ever.
//
// Whoever waits for half a second sends a probe to the rank that it waits for, with its Standing. That
// rank knows all that it has sent and taken, so it can tell whether the asker's operation needs
// something of it that it has not done yet. If its own operation in turn waits for the asker, it
// answers with the Standing of that, and the asker, which knows what it has sent and taken itself,
// checks the same. Where both hold, and each of the two programs calls one operation after the other,
// neither will ever go on: an operation that is waited for would come after one that waits.
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
  // An operation between two ranks waits: asks those that it waits for.
  void Ask(const Operation& op);
  void OnProbe(const Endpoint& endpoint, const Header& header, std::span<const std::byte> payload);
  void OnBlocked(const Header& header, std::span<const std::byte> payload);
  // Whether the endpoint has begun what an asker waits for.
  bool HasCome(const Endpoint& endpoint, const Header& header,
               std::span<const std::byte> payload) const;

 private:
  // Whether no operation but this one is under way that the program calls in order. If one thread calls
  // all of them, none can come before it is over.
  bool IsAlone(const Operation& op) const;
  // Does what has to be certain: if one thread of the program calls all operations, which takes a while
  // to find out.
  void IfOneByOne(std::function<void()> then);
  Standing StandingTowards(const Operation& op, int peer) const;
  void SendProbes(const Operation& op, bool alone);
  // Whether this member has done what an operation of `peer` with that standing waits for, or may have:
  // a message of its own may still be under way.
  bool HasServed(const Endpoint& endpoint, int peer, const Standing& standing) const;
  // Whether it is certain that an operation of `peer` with that standing goes on only after this member
  // has called another one.
  bool HoldsUp(const Endpoint& endpoint, int peer, const Standing& standing) const;
  // The operation of this member that waits for `peer`, whose operation with that standing goes on only
  // after this member has called another one; null when there is none, or more are under way.
  const Operation* WhoWaitsFor(const Endpoint& endpoint, int peer, const Standing& standing) const;
  // Ends a receive from the rank itself that nothing can come for.
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
