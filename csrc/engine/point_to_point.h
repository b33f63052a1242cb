// Runs point-to-point operations: numbers the sent messages, and passes received ones to the receives that match.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "common/options.h"
#include "execution/executor.h"
#include "execution/operations.h"
#include "matching/point_to_point_matching.h"
#include "matching/program.h"
#include "transport/transport_router.h"

namespace jaxccomp {

// All members need the engine's lock.
class PointToPoint {
 public:
  PointToPoint(const Options* options, TransportRouter* router, Executor* executor, PointToPointMatching* messages,
               Operations* operations)
      : options_(*options), router_(*router), executor_(*executor), messages_(*messages), operations_(*operations)
        {}

  // Numbers the message that the operation sends, and fills in its header.
  void Join(Operation* op, const CallSite& site);
  void Begin(Operation* op);
  void OnMessage(const IncomingMessage& message);
  void End(const Operation& op);

 private:
  // Passes a part of a message to its receive.
  void Give(const MatchKey& receiver, const IncomingMessage& message);
  // Records which message the operation receives. Makes the plan and begins the operation if the receive was from any
  // source. Call it for the first part of the message.
  void Take(Operation* op, const Header& header);

  const Options& options_;
  TransportRouter& router_;
  Executor& executor_;
  PointToPointMatching& messages_;
  Operations& operations_;
};

}  // namespace jaxccomp
