// Compression errors of lossy codecs, element by element.
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace jaxccomp {

// dst[i] = before[i] + (values[i] - decoded[i]) * times, for a floating dtype (IsFloating); `before` may be
// null (0). A difference that is not finite in this dtype counts as 0. Half types are computed in float and
// rounded once. Pointers need no alignment; dst may equal any of the others.
void AddResidual(DType dtype, void* dst, const void* before, const void* values, const void* decoded,
             int64_t count, int64_t times);

}  // namespace jaxccomp
