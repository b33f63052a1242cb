#include "reduce/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "common/instruction_sets.h"
#include "reduce/kernels.h"

namespace jaxccomp {

extern const Kernels kGenericKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

namespace {

constexpr std::array<std::string_view, kReduceOpCount> kOpNames = {
    "sum", "prod", "min", "max", "and", "or", "xor"};

// Bytes of a block of partial results. It fits in the first-level cache together with the same range of a
// source and of the destination.
constexpr int64_t kBlockBytes = 8 << 10;

bool IsComplex(DType dtype) { return dtype == DType::kComplex64 || dtype == DType::kComplex128; }

bool IsAllowed(DType dtype, ReduceOp op) {
  if (dtype == DType::kOpaque8) return false;
  const bool arithmetic = op == ReduceOp::kSum || op == ReduceOp::kProd;
  const bool order = op == ReduceOp::kMin || op == ReduceOp::kMax;
  if (dtype == DType::kBool) return !arithmetic;
  if (IsComplex(dtype)) return arithmetic;
  if (IsFloating(dtype)) return arithmetic || order;
  return true;
}

std::string AllowedList(DType dtype) {
  std::string list;
  const auto add = [&list](std::string_view name) {
    if (!list.empty()) list += ", ";
    list.append("'").append(name).append("'");
  };
  for (int i = 0; i < kReduceOpCount; ++i) {
    if (IsAllowed(dtype, static_cast<ReduceOp>(i))) add(kOpNames[i]);
  }
  if (IsFloating(dtype) || IsComplex(dtype)) add("mean");
  return list;
}

std::string_view Hint(DType dtype, ReduceOp op) {
  if (dtype == DType::kBool && op == ReduceOp::kSum) {
    return "; use 'or', or cast to an integer type to count";
  }
  if (dtype == DType::kBool && op == ReduceOp::kProd) return "; use 'and'";
  return "";
}

const std::byte* At(const void* base, int64_t offset_bytes) {
  return static_cast<const std::byte*>(base) + offset_bytes;
}

// Accumulates in a separate block and writes the destination only with the last source, so that any source
// may be the destination.
void ReduceFull(const Kernels& kernels, DType dtype, ReduceOp op, std::byte* dst,
                std::span<const void* const> sources, int64_t count, int64_t divisor) {
  const Kernels::Combine combine =
      kernels.combine[static_cast<int>(dtype)][static_cast<int>(op)];
  const int64_t size_bytes = SizeBytes(dtype);
  const int64_t block_count = kBlockBytes / size_bytes;
  const int64_t reals = IsComplex(dtype) ? 2 : 1;
  const bool divides = divisor > 1 && (IsComplex(dtype) || IsFloating(dtype));
  const bool single_precision = size_bytes / reals == 4;
  alignas(64) std::byte partial[kBlockBytes];

  for (int64_t begin = 0; begin < count; begin += block_count) {
    const int64_t n = std::min(block_count, count - begin);
    const int64_t offset_bytes = begin * size_bytes;
    std::byte* const out = dst + offset_bytes;
    const std::byte* left = At(sources[0], offset_bytes);
    if (sources.size() == 1 && left != out) std::memcpy(out, left, n * size_bytes);
    for (size_t s = 1; s < sources.size(); ++s) {
      std::byte* const into = s + 1 == sources.size() ? out : partial;
      combine(into, left, At(sources[s], offset_bytes), n);
      left = into;
    }
    if (!divides) continue;
    if (single_precision) {
      kernels.divide_float(out, n * reals, static_cast<float>(divisor));
    } else {
      kernels.divide_double(out, n * reals, static_cast<double>(divisor));
    }
  }
}

// The least power of two that is at least `count`.
float PowerOfTwoFrom(size_t count) { return static_cast<float>(std::bit_ceil(count)); }

// The same for float16 and bfloat16, with the arithmetic on a block of floats.
void ReduceHalf(const Kernels& kernels, DType dtype, ReduceOp op, std::byte* dst,
                std::span<const void* const> sources, int64_t count, int64_t divisor) {
  const bool brain = dtype == DType::kBFloat16;
  const Kernels::Convert widen = brain ? kernels.bfloat16_to_float : kernels.float16_to_float;
  const Kernels::Convert narrow = brain ? kernels.float_to_bfloat16 : kernels.float_to_float16;
  const Kernels::Combine combine =
      kernels.combine[static_cast<int>(DType::kFloat32)][static_cast<int>(op)];
  constexpr int64_t kBlockCount = kBlockBytes / sizeof(float);
  alignas(64) float partial[kBlockCount];
  alignas(64) float right[kBlockCount];

  for (int64_t begin = 0; begin < count; begin += kBlockCount) {
    const int64_t n = std::min(kBlockCount, count - begin);
    const int64_t offset_bytes = begin * static_cast<int64_t>(sizeof(uint16_t));
    const auto accumulate = [&](float scale) {
      for (size_t s = 0; s < sources.size(); ++s) {
        float* const values = s == 0 ? partial : right;
        widen(values, At(sources[s], offset_bytes), n);
        if (scale != 1) kernels.divide_float(values, n, scale);
        if (s > 0) combine(partial, partial, right, n);
      }
    };
    accumulate(1);
    auto quotient = static_cast<float>(divisor);
    // bfloat16 has the range of float: partial sums may overflow. Then scale the sources.
    if (brain && op == ReduceOp::kSum && !AllFinite(partial, n)) {
      const float scale = PowerOfTwoFrom(sources.size());
      accumulate(scale);
      quotient /= scale;
    }
    if (quotient != 1) kernels.divide_float(partial, n, quotient);
    narrow(dst + offset_bytes, partial, n);
  }
}

}  // namespace

std::span<const Kernels* const> RunnableKernels() {
  static const std::vector<const Kernels*> runnable = Runnable<Kernels>(
      {JAXCCOMP_X86_TABLE(avx512, kAvx512Kernels), JAXCCOMP_X86_TABLE(avx2, kAvx2Kernels),
       &kGenericKernels});
  return runnable;
}

std::string_view Name(ReduceOp op) {
  const auto index = static_cast<size_t>(op);
  return index < kOpNames.size() ? kOpNames[index] : "unknown";
}

std::optional<ReduceOp> ParseReduceOp(std::string_view name) {
  if (name == "mean") return ReduceOp::kSum;
  for (int i = 0; i < kReduceOpCount; ++i) {
    if (kOpNames[i] == name) return static_cast<ReduceOp>(i);
  }
  return std::nullopt;
}

Status CheckReducible(DType dtype, ReduceOp op, bool mean) {
  // Both may be invalid: from the wire, or from another language.
  if (static_cast<int>(dtype) >= kDTypeCount) {
    return {Code::kInvalidArgument,
            "dtype number " + std::to_string(static_cast<int>(dtype)) + " does not exist"};
  }
  if (static_cast<int>(op) >= kReduceOpCount) {
    return {Code::kInvalidArgument, "reduction number " + std::to_string(static_cast<int>(op)) +
                                        " does not exist"};
  }
  if (dtype == DType::kOpaque8) {
    return {Code::kInvalidArgument,
            "cannot reduce opaque8 with '" + std::string(mean ? "mean" : Name(op)) +
                "': one-byte float and sub-byte types can only be moved; cast to a wider type"};
  }
  if (mean && op != ReduceOp::kSum) {
    return {Code::kInvalidArgument,
            "a mean is a sum that is divided: it cannot be taken of '" + std::string(Name(op)) +
                "'"};
  }
  const bool allowed =
      mean ? IsFloating(dtype) || IsComplex(dtype) : IsAllowed(dtype, op);
  if (allowed) return Status::Ok();
  std::string message = "cannot reduce ";
  message.append(Name(dtype)).append(" with '").append(mean ? "mean" : Name(op));
  message.append("': valid are ").append(AllowedList(dtype));
  if (!mean) message.append(Hint(dtype, op));
  return {Code::kInvalidArgument, std::move(message)};
}

void ReduceWith(const Kernels& kernels, DType dtype, ReduceOp op, void* dst,
                std::span<const void* const> sources, int64_t count, int64_t divisor) {
  if (count <= 0 || sources.empty()) return;
  auto* const out = static_cast<std::byte*>(dst);
  if (sources.size() == 1 && divisor <= 1) {
    if (dst != sources[0]) std::memcpy(dst, sources[0], count * SizeBytes(dtype));
  } else if (dtype == DType::kBFloat16 && sources.size() == 2 && divisor <= 1) {
    kernels.combine[static_cast<int>(dtype)][static_cast<int>(op)](dst, sources[0], sources[1],
                                                                   count);
  } else if (IsHalf(dtype)) {
    ReduceHalf(kernels, dtype, op, out, sources, count, divisor);
  } else {
    ReduceFull(kernels, dtype, op, out, sources, count, divisor);
  }
}

bool AllFinite(const float* values, int64_t count) {
  constexpr uint32_t kInfinity = 0x7f800000;
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(values[i]) & 0x7fffffff;
    found |= magnitude >= kInfinity ? 1 : 0;
  }
  return found == 0;
}

void Reduce(DType dtype, ReduceOp op, void* dst, std::span<const void* const> sources,
            int64_t count, int64_t divisor) {
  ReduceWith(BestKernels(), dtype, op, dst, sources, count, divisor);
}

}  // namespace jaxccomp
