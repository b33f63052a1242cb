// Operations that are messages between two ranks: how they get the messages that are theirs.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "engine/state.h"
#include "matching/program.h"

namespace jaxccomp {

// All members need the engine's lock.
class PointToPoint {
 public:
  explicit PointToPoint(EngineState* state) : state_(*state) {}

  // Of a receive from anybody, until it is matched.
  static std::shared_ptr<const Plan> PlanOfUnmatched();
  // Numbers what the operation sends, and fills its header.
  void Join(Operation* op, const CallSite& site);
  void Begin(Operation* op);
  void OnMessage(const Header& header, std::span<const std::byte> payload, Announced announced);
  void End(const Operation& op);

 private:
  // A part of a message has come for that receive.
  void Give(const MatchKey& receiver, const Header& header, std::span<const std::byte> payload,
            Announced announced);
  // The first part of its message has come.
  void Take(Operation* op, const Header& header);

  EngineState& state_;
};

}  // namespace jaxccomp
