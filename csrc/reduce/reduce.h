// Element-wise reductions: dst[i] = src0[i] op src1[i] op ... in that order.
//
// float16 and bfloat16 are accumulated in float and rounded once (to nearest even) at the
// end of the call, so a merge of all ranks' values at once loses no more than one rounding. A sum of
// bfloat16 that leaves the range of float on the way is made again of smaller numbers: a mean, or a
// sum that comes back, is finite.
// Integers wrap. min and max propagate NaN, as jax.lax.pmin and pmax do. Complex min and
// max, and bit operations on floating types, are refused by `CheckReducible`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "common/dtype.h"
#include "common/status.h"

namespace jaxccomp {

enum class ReduceOp : uint8_t { kSum, kProd, kMin, kMax, kAnd, kOr, kXor };
inline constexpr int kReduceOpCount = 7;

std::string_view Name(ReduceOp op);
// Name as users write it ("sum", "prod", ...); "mean" is kSum with a divisor.
std::optional<ReduceOp> ParseReduceOp(std::string_view name);

// Ok, or kInvalidArgument that names the dtype, the operation and what is allowed.
// `mean` also requires a floating or complex dtype.
Status CheckReducible(DType dtype, ReduceOp op, bool mean);

// Reduces `count` elements of `sources` (one or more arrays, any alignment, each either equal
// to `dst` or not overlapping it) into `dst`. When `divisor` > 1 the sum is divided by it
// before the final rounding. The combination must have passed CheckReducible.
void Reduce(DType dtype, ReduceOp op, void* dst, std::span<const void* const> sources,
            int64_t count, int64_t divisor = 1);

// Whether no value is infinite or NaN.
bool AllFinite(const float* values, int64_t count);

}  // namespace jaxccomp
