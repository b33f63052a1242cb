// The limits of temporary memory (Scratch and Code blocks) while a schedule runs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "collective/schedule.h"

namespace jaxccomp {

// Tasks of the lowest unfinished lane always get memory; tasks of higher lanes only while the total is
// within early_bytes. Algorithms ensure that one lane holds at most half of bound_bytes, or a quarter if
// slim; most need far less. The total thus never exceeds bound_bytes, and usually leaves room for messages
// from other hosts that arrive before their receive (transport/mpi).
struct MemoryLimits {
  int64_t bound_bytes = 0;   // 4 chunks for each peer of this rank
  int64_t early_bytes = 0;
};

inline MemoryLimits LimitsOf(const Schedule& schedule, int64_t chunk_bytes) {
  const int64_t bound_bytes = 4 * chunk_bytes * std::max(schedule.Peers(), 1);
  return {.bound_bytes = bound_bytes, .early_bytes = bound_bytes / 8 * (schedule.slim_lanes ? 5 : 3)};
}

}  // namespace jaxccomp
