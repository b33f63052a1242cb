// What comes from other ranks: each message goes to the part of the engine that it concerns, after it has
// been checked against what runs here.
#pragma once

#include <cstddef>
#include <span>

#include "engine/deadlock_detector.h"
#include "engine/failures.h"
#include "engine/point_to_point.h"
#include "engine/program_comparison.h"
#include "engine/state.h"

namespace jaxccomp {

// All members need the engine's lock.
class PeerMessages final : public Receiver {
 public:
  PeerMessages(EngineState* state, Failures* failures, PointToPoint* point_to_point,
               DeadlockDetector* deadlocks, ProgramComparison* comparison)
      : state_(*state),
        failures_(*failures),
        point_to_point_(*point_to_point),
        deadlocks_(*deadlocks),
        comparison_(*comparison) {}

  // Receiver
  void OnMessage(const Header& header, std::span<const std::byte> payload,
                 Announced announced) override;
  void OnPeerLost(int process, const Status& why) override { failures_.OnPeerLost(process, why); }

  // The message is of another launch than that one, which has its number here.
  void RefuseOtherLaunch(Endpoint& endpoint, const Launch& launch, const Header& header,
                         std::span<const std::byte> payload);

 private:
  using Clock = EngineState::Clock;

  void OnProbe(const Endpoint& endpoint, const Header& header, bool here);
  void OnPresent(const Header& header);
  void OnBehind(const Header& header);
  // The operation that an answer is for, while it goes on; null when there is none.
  Operation* FindAsker(const Header& answer) const;

  EngineState& state_;
  Failures& failures_;
  PointToPoint& point_to_point_;
  DeadlockDetector& deadlocks_;
  ProgramComparison& comparison_;
};

}  // namespace jaxccomp
