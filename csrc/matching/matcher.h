// Matching: gives each operation the key that it has on all ranks, and keeps unexpected messages, which came before
// their operation.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "matching/call.h"
#include "matching/communicator.h"
#include "matching/early_messages.h"
#include "matching/program.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class Matcher {
 public:
  struct Posted {
    MatchKey key;
    std::shared_ptr<Launch> launch;       // null when matched by program order
    bool new_launch = false;
    bool overlaps = false;                // with another launch
  };
  // Returns the key of the operation that `site` runs now on the endpoint. Not for point to point.
  Posted Post(CallSite& site, Endpoint& endpoint, const Call& call);

  // Messages that came before their operation.
  EarlyMessages& early() { return early_; }
  const EarlyMessages& early() const { return early_; }
  // Returns a kept message whose sender describes the endpoint's new launch differently; null if there is none.
  const Arrival* FindOtherLaunch(const Endpoint& endpoint, const Launch& launch) const;

 private:
  EarlyMessages early_;
};

// Whether the message's operation belongs to a launch, not to program order.
bool IsOfLaunch(const Header& header);

// Whether the endpoint has begun the message's operation or, for one in a launch, its launch.
bool HasComeTo(const Endpoint& endpoint, const Header& header);

// Whether the message is for an operation in program order that has ended on the endpoint. The operation must not be
// running.
bool ComesTooLate(const Endpoint& endpoint, const Header& header);

// The step in a Call::place plus 1; 0 if it has none. In program order, only steps that both sides have named can be
// compared (option check_launches).
uint64_t StepOf(std::string_view place);
// `mine`: the header of this rank's messages of the operation.
bool IsOfAnotherStep(const Header& mine, const Header& header);
}  // namespace jaxccomp
