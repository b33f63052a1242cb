// Hosts that do the same at the same time. Where every host does what the first one does, towards hosts as
// far away, the simulation of the first one is that of all.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/algorithm.h"
#include "planner/cluster.h"

namespace jaxccomp {

// What "as far away" means: by how many hosts (rotation), or by which bits of its number (exchange).
enum class Symmetry : uint8_t { kNone, kRotation, kExchange };

// Where the hosts of an algorithm's schedules differ in nothing else. It looks at the sizes, and compares the
// schedules of some hosts with those of the first one; tests compare them all.
Symmetry SymmetryOf(const Algorithm& algorithm, const Problem& problem, const Cluster& cluster);

// How far host `to` is from `from`. It breaks ties between what comes at one time, so that hosts that are
// alike break them alike.
inline int Distance(Symmetry symmetry, int from, int to, int hosts) {
  if (symmetry == Symmetry::kExchange) return from ^ to;
  return to >= from ? to - from : to - from + hosts;
}

// Whether the schedules of host `host` are those of the first one, towards hosts as far away.
bool IsAlike(const Algorithm& algorithm, Problem problem, int ranks_per_host, Symmetry symmetry,
             const std::vector<Schedule>& first, int host);

}  // namespace jaxccomp
