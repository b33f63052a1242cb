// Identity elements of reductions.
#pragma once

#include <cstdint>

#include "reduce/reduce.h"

namespace jaxccomp {

// Fills `count` elements with the identity: 0 for sum, or, xor; 1 for prod; all bits (true) for and; for min
// the largest and for max the smallest value, which may be infinite. The combination must have passed
// CheckReducible.
void FillIdentity(DType dtype, ReduceOp op, void* dst, int64_t count);

}  // namespace jaxccomp
