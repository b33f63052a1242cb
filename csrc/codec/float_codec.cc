#include "codec/float_codec.h"

#include <algorithm>
#include <cstring>

#include "codec/merge.h"
#include "reduce/kernels.h"

namespace jaxccomp {
namespace {

constexpr int64_t kTile = FloatCodec::kTileValues;

void ToFloats(DType dtype, const std::byte* src, int64_t count, float* out) {
  switch (dtype) {
    case DType::kFloat16: return BestKernels().float16_to_float(out, src, count);
    case DType::kBFloat16: return BestKernels().bfloat16_to_float(out, src, count);
    default:
      for (int64_t i = 0; i < count; ++i) {
        double value;
        std::memcpy(&value, src + i * sizeof(double), sizeof(double));
        out[i] = static_cast<float>(value);
      }
  }
}

void FromFloats(DType dtype, const float* values, int64_t count, std::byte* dst) {
  switch (dtype) {
    case DType::kFloat16: return BestKernels().float_to_float16(dst, values, count);
    case DType::kBFloat16: return BestKernels().float_to_bfloat16(dst, values, count);
    default:
      for (int64_t i = 0; i < count; ++i) {
        const double value = values[i];
        std::memcpy(dst + i * sizeof(double), &value, sizeof(double));
      }
  }
}

float Greatest(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return 65504;
    case DType::kBFloat16: return 0x1.fep127f;
    default: return std::numeric_limits<float>::max();
  }
}

}  // namespace

ErrorBound FloatCodec::BoundFor(DType dtype, ErrorBound floats) {
  ErrorBound bound = floats;
  const double rounding = dtype == DType::kBFloat16  ? 0x1p-8
                          : dtype == DType::kFloat16 ? 0x1p-11
                          : dtype == DType::kFloat64 ? 0x1p-24
                                                     : 0;
  bound.relative = floats.relative * (1 + rounding) + rounding + 0x1p-22;
  bound.block = floats.block * (1 + rounding);
  bound.absolute = floats.absolute * (1 + rounding) +
                   (dtype == DType::kFloat16 ? 0x1p-25 : 0x1p-126);
  // The greatest double that rounds to a finite float.
  if (dtype == DType::kFloat64) bound.range = 0x1.fffffefffffffp127;
  bound.keeps_nonfinite = false;
  return bound;
}

Result<int64_t> FloatCodec::DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                                     const CodingContext& context) const {
  if (dtype == DType::kFloat32) {
    EncodeFloats(src, {0, count, count}, dst, context);
    return MaxEncodedBytes(dtype, count);
  }
  alignas(64) float tile[kTile];
  auto* from = static_cast<const std::byte*>(src);
  for (int64_t i = 0; i < count; i += kTile) {
    const int64_t n = std::min(kTile, count - i);
    ToFloats(dtype, from + i * SizeBytes(dtype), n, tile);
    EncodeFloats(tile, {i, n, count}, dst, context);
  }
  return MaxEncodedBytes(dtype, count);
}

Status FloatCodec::DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                            const CodingContext&) const {
  const float limit = Greatest(dtype);
  if (dtype == DType::kFloat32) {
    DecodeFloats(src.data(), {0, count, count}, limit, Into::kStored, dst);
    return Status::Ok();
  }
  alignas(64) float tile[kTile];
  auto* to = static_cast<std::byte*>(dst);
  for (int64_t i = 0; i < count; i += kTile) {
    const int64_t n = std::min(kTile, count - i);
    DecodeFloats(src.data(), {i, n, count}, limit, Into::kStored, tile);
    FromFloats(dtype, tile, n, to + i * SizeBytes(dtype));
  }
  return Status::Ok();
}

Status FloatCodec::DoDecodeMerge(DType dtype, std::span<const std::byte> src, ReduceOp op,
                                 DType acc_dtype, void* acc, int64_t count,
                                 const CodingContext&) const {
  const float limit = Greatest(dtype);
  if (acc_dtype == DType::kFloat32 && op == ReduceOp::kSum) {
    DecodeFloats(src.data(), {0, count, count}, limit, Into::kAdded, acc);
    return Status::Ok();
  }
  alignas(64) float tile[kTile];
  alignas(64) std::byte values[kTile * sizeof(double)];
  auto* to = static_cast<std::byte*>(acc);
  for (int64_t i = 0; i < count; i += kTile) {
    const int64_t n = std::min(kTile, count - i);
    DecodeFloats(src.data(), {i, n, count}, limit, Into::kStored, tile);
    // With a float accumulator, half types are not rounded before the reduction.
    const void* merged = tile;
    if (acc_dtype != DType::kFloat32) {
      FromFloats(dtype, tile, n, values);
      merged = values;
    }
    MergeValues(acc_dtype, merged, op, acc_dtype, to + i * SizeBytes(acc_dtype), n);
  }
  return Status::Ok();
}

}  // namespace jaxccomp
