// The value that a reduction leaves everything unchanged with.
#pragma once

#include <cstdint>

#include "reduce/reduce.h"

namespace jaxccomp {

// Fills `count` elements with it: 0 for sum, or, xor; 1 for prod; all bits (true) for and; the
// largest value for min and the smallest for max, infinities where there are any. The combination
// must have passed CheckReducible.
void FillIdentity(DType dtype, ReduceOp op, void* dst, int64_t count);

}  // namespace jaxccomp
