// How much temporary memory (Scratch and Code blocks) the run of a schedule may hold.
#pragma once

#include <cstdint>
#include <span>

#include "collective/schedule.h"

namespace jaxccomp {

// Tasks of the lowest lane that is not done take what memory they need; those of higher lanes only
// while all that is held stays within early_bytes. As one lane holds half of bound_bytes at most
// (the algorithms see to it), nothing ever holds more than bound_bytes.
struct MemoryLimits {
  int64_t bound_bytes = 0;   // 4 chunks for each rank that this one talks to
  int64_t early_bytes = 0;
};

// scratch_bytes and code_bytes: of the schedule's blocks; of a code, the most that it can have.
MemoryLimits LimitsOf(const Schedule& schedule, std::span<const int64_t> scratch_bytes,
                      std::span<const int64_t> code_bytes, int64_t chunk_bytes);

}  // namespace jaxccomp
