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
  // The key of the operation, not point to point, that `site` runs now on that endpoint.
  Posted Post(CallSite& site, Endpoint& endpoint, const Call& call);

  // What came before its operation.
  EarlyMessages& early() { return early_; }
  const EarlyMessages& early() const { return early_; }
  // A kept message of another launch than the one that has just begun on the endpoint; null when
  // there is none.
  const Arrival* FindOtherLaunch(const Endpoint& endpoint, const Launch& launch) const;

 private:
  EarlyMessages early_;
};

// Whether the message is for an operation of a launch, and not for one in program order.
bool IsOfLaunch(const Header& header);

// Whether the endpoint has begun the message's operation, or for one in a launch, its launch.
bool HasComeTo(const Endpoint& endpoint, const Header& header);

// Whether the message, for an operation that is not under way, is for one in program order that
// is over on that endpoint.
bool ComesTooLate(const Endpoint& endpoint, const Header& header);

// Without launches, in program order, only steps that both sides have named can be compared
// (option check_launches): one more than the number in a Call::place, 0 where it has none.
uint64_t StepOf(std::string_view place);
// `mine`: of the messages of the operation here.
bool IsOfAnotherStep(const Header& mine, const Header& header);
}  // namespace jaxccomp
