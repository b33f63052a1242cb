// Differences to a reference, for the codecs that do not form them by themselves.
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace jaxccomp {

// difference = values XOR ref when `exact`, else values - ref, rounded once. Nothing need be
// aligned; `difference` overlaps neither.
void Subtract(DType dtype, bool exact, const void* values, const void* ref, void* difference,
              int64_t count);
// The inverse, but for rounding. `values` may be `ref`.
void Add(DType dtype, bool exact, const void* difference, const void* ref, void* values,
         int64_t count);

}  // namespace jaxccomp
