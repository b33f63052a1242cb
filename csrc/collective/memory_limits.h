// How much temporary memory (Scratch and Code blocks) the run of a schedule may hold.
#pragma once

#include <algorithm>
#include <cstdint>

#include "collective/schedule.h"

namespace jaxccomp {

// Tasks of the lowest lane that is not done take what memory they need; those of higher lanes only
// while all that is held stays within early_bytes. One lane holds half of bound_bytes at most, or a
// quarter where it is slim (the algorithms see to it, and most need far less), so nothing ever holds
// more than bound_bytes, and as a rule there is room for what comes from other hosts before it is
// wanted (transport/mpi).
struct MemoryLimits {
  int64_t bound_bytes = 0;   // 4 chunks for each rank that this one talks to
  int64_t early_bytes = 0;
};

inline MemoryLimits LimitsOf(const Schedule& schedule, int64_t chunk_bytes) {
  const int64_t bound_bytes = 4 * chunk_bytes * std::max(schedule.Peers(), 1);
  return {.bound_bytes = bound_bytes, .early_bytes = bound_bytes / 8 * (schedule.slim_lanes ? 5 : 3)};
}

}  // namespace jaxccomp
