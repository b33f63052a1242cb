// The reduction step of DecodeMerge, for a few values at a time.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "reduce/reduce.h"

namespace jaxccomp {

// acc[i] = acc[i] op values[i]. `acc_dtype` is `dtype`, or kFloat32 if `dtype` is a half type.
void MergeValues(DType dtype, const void* values, ReduceOp op, DType acc_dtype, void* acc,
                 int64_t count);

// dst[i] = values[i], rounded to a half type.
void RoundToHalf(DType dtype, const float* values, void* dst, int64_t count);

// Values to decode at a time: they stay in the first-level cache.
inline constexpr int64_t kMergeValues = 2048;

}  // namespace jaxccomp
