// Operations that are messages between two ranks: how they get the messages that are theirs.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "common/options.h"
#include "execution/executor.h"
#include "execution/operations.h"
#include "matching/point_to_point_matching.h"
#include "matching/program.h"
#include "transport/wire.h"

namespace jaxccomp {

// All members need the engine's lock.
class PointToPoint {
 public:
  PointToPoint(const Options* options, Wire* wire, Executor* executor, PointToPointMatching* messages,
               Operations* operations)
      : options_(*options), wire_(*wire), executor_(*executor), messages_(*messages), operations_(*operations)
        {}

  // Numbers what the operation sends, and fills its header.
  void Join(Operation* op, const CallSite& site);
  void Begin(Operation* op);
  void OnMessage(const IncomingMessage& message);
  void End(const Operation& op);

 private:
  // A part of a message has come for that receive.
  void Give(const MatchKey& receiver, const IncomingMessage& message);
  // The first part of its message has come.
  void Take(Operation* op, const Header& header);

  const Options& options_;
  Wire& wire_;
  Executor& executor_;
  PointToPointMatching& messages_;
  Operations& operations_;
};

}  // namespace jaxccomp
