// Counts of the engine's work, for `jaxccomp.stats`.
#pragma once

#include <array>
#include <cstdint>

#include "collective/algorithm.h"

namespace jaxccomp {

struct CollectiveStats {
  int64_t calls = 0;
  int64_t value_bytes = 0;   // size of the operands' blocks
  int64_t sent_bytes = 0;    // payload given to a transport, after encoding
  int64_t remote_bytes = 0;  // the part of sent_bytes that left the process
  int64_t raw_bytes = 0;     // the payload of sent_bytes before encoding
  int64_t peak_bytes = 0;    // maximum temporary memory of one call
  int64_t bound_bytes = 0;   // the limit of that call's temporary memory (collective/memory_limits.h)
  double seconds = 0;        // from the call to its end, summed over calls
};

using Stats = std::array<CollectiveStats, kCollectiveCount>;

}  // namespace jaxccomp
