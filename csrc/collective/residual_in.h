// Error feedback with a residual as an operand and as a result.
#pragma once

#include "collective/schedule.h"

namespace jaxccomp {

// Returns the schedule of a rank that contributes its operand plus the residual of the last call (Space::kResidualIn).
// The sum is stored in Residual, in the residual's dtype, which may be wider than the operand's. Tasks read the sum
// instead of the operand, until the compression error overwrites the sum. Sums need no further memory, and each chunk
// is added, encoded and compared with its code while it is in the cache. Ranges that tasks read but do not encode get
// zeros.
//
// `schedule` has feedback, and does not read a range of Input after the range's first compression error.
Schedule AddResidualsIn(const Schedule& schedule);

}  // namespace jaxccomp
