// What the computations of a collective do to one part: values of one dtype that lie together, or
// a code of them. Wherever values lie, results have the bits that these functions give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec.h"

namespace jaxccomp {

// In all of them, without a codec (null) a code is the values as they are.

// kDataLoss when `code` is not one of `count` values.
Status DecodePart(const Codec* codec, DType dtype, std::span<const std::byte> code, void* dst,
                  int64_t count, const CodingContext& context);

// Returns the bytes written.
Result<int64_t> EncodePart(const Codec* codec, DType dtype, const void* values, int64_t count,
                           std::span<std::byte> code, const CodingContext& context);

// Values, or a code of as many.
struct MergeSource {
  const void* values = nullptr;          // null: a code
  std::span<const std::byte> code = {};
};

// dst = all sources, in their order, reduced; a sum is divided by `divisor`. A source's values may
// be dst.
Status MergePart(const Codec* codec, DType dtype, ReduceOp op, int64_t divisor, void* dst,
                 int64_t count, std::span<const MergeSource> sources, Workspace& workspace);

// dst = operand + residual, for an operand of a half type and float32. `dst` may be `residual`.
void AddOperand(DType dtype, const void* operand, const void* residual, void* dst, int64_t count);

// dst = before + (values - decoded code) * times; without `before` (null), 0. See reduce/residual.h.
Status ResidualPart(const Codec* codec, DType dtype, void* dst, const void* before, const void* values,
                std::span<const std::byte> code, int64_t count, int64_t times,
                Workspace& workspace);

}  // namespace jaxccomp
