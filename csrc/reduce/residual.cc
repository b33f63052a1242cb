#include "reduce/residual.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "reduce/kernels.h"

namespace jaxccomp {
namespace {

// A block's operands and results stay in the first-level cache.
constexpr int64_t kBlockBytes = 4 << 10;
alignas(64) constexpr std::byte kZeros[kBlockBytes] = {};

// The largest finite values.
constexpr float kMaxFloat16 = 65504;
constexpr float kMaxBFloat16 = 0x1.fep127f;

const std::byte* At(const void* base, int64_t offset_bytes) {
  return static_cast<const std::byte*>(base) + offset_bytes;
}

void AddResidualHalf(const Kernels& kernels, DType dtype, std::byte* dst, const void* before,
                 const void* values, const void* decoded, int64_t count, int64_t times) {
  const bool brain = dtype == DType::kBFloat16;
  const Kernels::Convert widen = brain ? kernels.bfloat16_to_float : kernels.float16_to_float;
  const Kernels::Convert narrow = brain ? kernels.float_to_bfloat16 : kernels.float_to_float16;
  constexpr int64_t kBlockCount = kBlockBytes / sizeof(float);
  alignas(64) float old[kBlockCount] = {};
  alignas(64) float x[kBlockCount];
  alignas(64) float y[kBlockCount];
  for (int64_t begin = 0; begin < count; begin += kBlockCount) {
    const int64_t n = std::min(kBlockCount, count - begin);
    const int64_t offset_bytes = begin * SizeBytes(dtype);
    if (before != nullptr) widen(old, At(before, offset_bytes), n);
    widen(x, At(values, offset_bytes), n);
    widen(y, At(decoded, offset_bytes), n);
    kernels.residual_float(x, old, x, y, n, static_cast<float>(times),
                       brain ? kMaxBFloat16 : kMaxFloat16);
    narrow(dst + offset_bytes, x, n);
  }
}

template <typename T>
void AddResidualFull(void (*add)(void*, const void*, const void*, const void*, int64_t, T, T),
                 std::byte* dst, const void* before, const void* values, const void* decoded,
                 int64_t count, int64_t times) {
  constexpr int64_t kSizeBytes = sizeof(T), kBlockCount = kBlockBytes / kSizeBytes;
  for (int64_t begin = 0; begin < count; begin += kBlockCount) {
    const int64_t offset_bytes = begin * kSizeBytes;
    add(dst + offset_bytes, before == nullptr ? kZeros : At(before, offset_bytes),
         At(values, offset_bytes), At(decoded, offset_bytes), std::min(kBlockCount, count - begin),
         static_cast<T>(times), std::numeric_limits<T>::max());
  }
}

}  // namespace

void AddResidual(DType dtype, void* dst, const void* before, const void* values, const void* decoded,
             int64_t count, int64_t times) {
  const Kernels& kernels = BestKernels();
  auto* const out = static_cast<std::byte*>(dst);
  if (SizeBytes(dtype) == 2) {
    AddResidualHalf(kernels, dtype, out, before, values, decoded, count, times);
  } else if (dtype == DType::kFloat32) {
    AddResidualFull(kernels.residual_float, out, before, values, decoded, count, times);
  } else {
    AddResidualFull(kernels.residual_double, out, before, values, decoded, count, times);
  }
}

}  // namespace jaxccomp
