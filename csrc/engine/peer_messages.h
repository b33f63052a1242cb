// Handles messages from other ranks: checks each against the operations here, and passes it to the part of the engine
// that it concerns.
#pragma once

#include <cstddef>
#include <span>

#include "common/options.h"
#include "engine/deadlock_detector.h"
#include "engine/failures.h"
#include "engine/point_to_point.h"
#include "engine/program_comparison.h"
#include "execution/executor.h"
#include "execution/operations.h"
#include "matching/matcher.h"
#include "matching/registry.h"
#include "transport/transport_router.h"

namespace jaxccomp {

// All members need the engine's lock.
class PeerMessages final : public Receiver {
 public:
  PeerMessages(const Options* options, Registry* registry, TransportRouter* router, Executor* executor,
               Matcher* matcher, Operations* operations, Failures* failures, PointToPoint* point_to_point,
               DeadlockDetector* deadlocks, ProgramComparison* comparison)
      : options_(*options), registry_(*registry), router_(*router), executor_(*executor), matcher_(*matcher),
        operations_(*operations), failures_(*failures), point_to_point_(*point_to_point),
        deadlocks_(*deadlocks), comparison_(*comparison) {}

  // Receiver
  void OnMessage(const Header& header, std::span<const std::byte> payload,
                 Announced announced) override {
    Deliver(IncomingMessage(header, payload, announced));
  }
  void OnPeerFailed(int process, const Status& why) override { failures_.OnPeerFailed(process, why); }

  void Deliver(const IncomingMessage& message);
  // Breaks the communicator because the sender's launch with the number of `launch` is another one. `header` and
  // `payload`: the sender's message.
  void RefuseOtherLaunch(Endpoint& endpoint, const Launch& launch, const Header& header,
                         std::span<const std::byte> payload);

 private:
  using Clock = Operation::Clock;

  // `here`: this rank has begun the operation.
  void OnProbe(const Endpoint& endpoint, const Header& header, bool here);
  void OnPresent(const Header& header);
  void OnBehind(const Header& header);
  // Returns the open operation whose probe `answer` answers; null if there is none.
  Operation* FindAsker(const Header& answer) const;

  const Options& options_;
  Registry& registry_;
  TransportRouter& router_;
  Executor& executor_;
  Matcher& matcher_;
  Operations& operations_;
  Failures& failures_;
  PointToPoint& point_to_point_;
  DeadlockDetector& deadlocks_;
  ProgramComparison& comparison_;
};

}  // namespace jaxccomp
