// The computations of a collective on a part: contiguous values of one dtype, or their code. Other
// implementations, such as on GPUs, must give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec.h"

namespace jaxccomp {

// In all functions, a null codec means that a code is the raw values.

// kDataLoss if `code` is not a code of `count` values.
Status DecodePart(const Codec* codec, DType dtype, std::span<const std::byte> code, void* dst,
                  int64_t count, const CodingContext& context);

// Returns the bytes written.
Result<int64_t> EncodePart(const Codec* codec, DType dtype, const void* values, int64_t count,
                           std::span<std::byte> code, const CodingContext& context);

// Values, or their code.
struct MergeSource {
  const void* values = nullptr;          // null: a code
  std::span<const std::byte> code = {};
};

// dst = the reduction of all sources, in order; a sum is divided by `divisor`. A source's values may be
// dst.
Status MergePart(const Codec* codec, DType dtype, ReduceOp op, int64_t divisor, void* dst,
                 int64_t count, std::span<const MergeSource> sources, Workspace& workspace);

// dst = operand + residual, with an operand of a half type and a float32 residual. `dst` may be `residual`.
void AddOperand(DType dtype, const void* operand, const void* residual, void* dst, int64_t count);

// dst = before + (values - decoded code) * times; `before` may be null (0). See reduce/residual.h.
Status ResidualPart(const Codec* codec, DType dtype, void* dst, const void* before, const void* values,
                std::span<const std::byte> code, int64_t count, int64_t times,
                Workspace& workspace);

}  // namespace jaxccomp
