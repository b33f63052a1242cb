// What a lossy code loses of values, element by element.
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace jaxccomp {

// dst[i] = before[i] + (values[i] - decoded[i]) * times, of a floating dtype (IsFloating); without
// `before`, 0. What is lost and is not finite, or would not be in that dtype, counts as 0. Half
// types are computed in float and rounded once. No alignment is needed; dst may be any of the others.
void AddResidual(DType dtype, void* dst, const void* before, const void* values, const void* decoded,
             int64_t count, int64_t times);

}  // namespace jaxccomp
