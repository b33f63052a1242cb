// Error feedback whose residual goes in as well as out.
#pragma once

#include "collective/schedule.h"

namespace jaxccomp {

// The schedule of a rank that contributes its operand plus the residual of the call before (Space::kCarried).
// The sum lies in Residual, and every task reads it there instead of the operand, until the compression error
// is written over it. The sum has the dtype of the residual, which may be wider than the operand's. So no memory is needed for sums, and each chunk is added up, encoded and compared with its
// code while it is in the cache. Where nothing of a range is encoded, nothing is lost: zeros are written.
//
// `schedule` has feedback, and reads no range of Input after its first compression error is known.
Schedule CarryResiduals(const Schedule& schedule);

}  // namespace jaxccomp
