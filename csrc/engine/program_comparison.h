// Compares a program's collectives between its ranks before its first launch on a communicator
// (matching/comparison.h), and holds the operations that wait for this.
#pragma once

#include <functional>
#include <utility>

#include "common/options.h"
#include "engine/failures.h"
#include "matching/comparison.h"
#include "matching/matcher.h"
#include "transport/transport_router.h"

namespace jaxccomp {

// All members need the engine's lock.
class ProgramComparison {
 public:
  // `begin` is called with each waiting operation when its comparison has passed.
  ProgramComparison(const Options* options, TransportRouter* router, Matcher* matcher, Failures* failures,
                    std::function<void(Operation*)> begin)
      : options_(*options), router_(*router), matcher_(*matcher), failures_(*failures), begin_(std::move(begin)) {}

  // Returns the comparison that operations of that launch must wait for; null if it has passed or is not needed.
  Comparison* Pending(Endpoint& endpoint, Launch& launch);
  // Advances the comparison as far as messages have come.
  void Compare(Endpoint& endpoint, Comparison& comparison);

 private:
  const Options& options_;
  TransportRouter& router_;
  Matcher& matcher_;
  Failures& failures_;
  const std::function<void(Operation*)> begin_;
};

}  // namespace jaxccomp
