// Finds hosts that do the same at the same time. If every host does what the first one does, towards hosts at the
// same distance, the simulation of the first one stands for all.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/algorithm.h"
#include "planner/cluster.h"

namespace jaxccomp {

// How distance is defined: by a number of hosts (rotation), or by bits of the host's number (exchange).
enum class Symmetry : uint8_t { kNone, kRotation, kExchange };

// The symmetry under which all hosts of an algorithm have equal schedules. Checks the sizes, and compares the
// schedules of some hosts with the first one's; tests compare all.
Symmetry SymmetryOf(const Algorithm& algorithm, const Problem& problem, const Cluster& cluster);

// The distance from host `from` to host `to`. It breaks ties between events at the same time, so that equal hosts
// break them alike.
inline int Distance(Symmetry symmetry, int from, int to, int hosts) {
  if (symmetry == Symmetry::kExchange) return from ^ to;
  return to >= from ? to - from : to - from + hosts;
}

// Whether host `host` has the same schedules as the first one, towards hosts at the same distance.
bool IsAlike(const Algorithm& algorithm, Problem problem, int ranks_per_host, Symmetry symmetry,
             const std::vector<Schedule>& first, int host);

}  // namespace jaxccomp
