#include "codec/merge.h"

#include <algorithm>
#include <cstddef>

#include "reduce/kernels.h"

namespace jaxccomp {

void MergeValues(DType dtype, const void* values, ReduceOp op, DType acc_dtype, void* acc,
                 int64_t count) {
  if (acc_dtype == dtype) {
    const void* sources[] = {acc, values};
    return Reduce(dtype, op, acc, sources, count);
  }
  const Kernels& kernels = BestKernels();
  const auto to_float =
      dtype == DType::kBFloat16 ? kernels.bfloat16_to_float : kernels.float16_to_float;
  constexpr int64_t kPiece = 1024;
  alignas(64) float piece[kPiece];
  auto* from = static_cast<const std::byte*>(values);
  auto* to = static_cast<std::byte*>(acc);
  for (int64_t i = 0; i < count; i += kPiece) {
    const int64_t n = std::min(kPiece, count - i);
    to_float(piece, from + i * SizeBytes(dtype), n);
    const void* sources[] = {to + i * sizeof(float), piece};
    Reduce(DType::kFloat32, op, to + i * sizeof(float), sources, n);
  }
}

void RoundToHalf(DType dtype, const float* values, void* dst, int64_t count) {
  const Kernels& kernels = BestKernels();
  const auto round =
      dtype == DType::kBFloat16 ? kernels.float_to_bfloat16 : kernels.float_to_float16;
  round(dst, values, count);
}

}  // namespace jaxccomp
