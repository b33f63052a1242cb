// Element-wise reductions: dst[i] = src0[i] op src1[i] op ... in that order.
//
// float16 and bfloat16 are accumulated in float and rounded once (to nearest even) at the end of the call, so merging
// all ranks' values at once has only one rounding. If a partial sum of bfloat16 overflows float, the sum is repeated
// with scaled values, so that a mean or a sum within the range stays finite. Integers wrap. min and max propagate NaN,
// as jax.lax.pmin and pmax do. `CheckReducible` refuses complex min and max, and bit operations on floating types.
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
// The user's name ("sum", "prod", ...); "mean" is kSum with a divisor.
std::optional<ReduceOp> ParseReduceOp(std::string_view name);

// Ok, or kInvalidArgument whose text has the dtype, the operation and the allowed ones. `mean` also requires
// a floating or complex dtype.
Status CheckReducible(DType dtype, ReduceOp op, bool mean);

// Reduces `count` elements of `sources` into `dst`. There are one or more sources, of any alignment; each
// equals `dst` or does not overlap it. With `divisor` > 1 the sum is divided by it before the final
// rounding. The combination must have passed CheckReducible.
void Reduce(DType dtype, ReduceOp op, void* dst, std::span<const void* const> sources,
            int64_t count, int64_t divisor = 1);

// Whether all values are finite.
bool AllFinite(const float* values, int64_t count);

}  // namespace jaxccomp
