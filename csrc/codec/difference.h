// Differences to a reference, for codecs without Traits::takes_reference.
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace jaxccomp {

// difference = values XOR ref if `exact`, else values - ref, rounded once. Pointers need no
// alignment; `difference` overlaps neither input.
void Subtract(DType dtype, bool exact, const void* values, const void* ref, void* difference,
              int64_t count);
// The inverse, apart from rounding. `values` may be `ref`.
void Add(DType dtype, bool exact, const void* difference, const void* ref, void* values,
         int64_t count);

}  // namespace jaxccomp
