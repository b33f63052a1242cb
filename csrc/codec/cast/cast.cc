// The codecs "bf16" and "fp16": floats in a narrower type, rounded once, to nearest even.
//
// NaN stays NaN and infinity stays infinity; what would round to 2^(greatest exponent + 1) becomes
// infinity. Wire format: the values in the narrow type, little-endian, and nothing else.
#include <algorithm>

#include "codec/merge.h"
#include "codec/rows.h"
#include "reduce/kernels.h"

namespace jaxccomp {
namespace {

struct Narrow {
  std::string_view name;
  DType dtype;
  ErrorBound bound;   // half a unit in the last place, of normal and of subnormal values
  Kernels::Convert Kernels::*from_float;
  Kernels::Convert Kernels::*to_float;
  Kernels::Convert Kernels::*from_double;
  Kernels::Convert Kernels::*to_double;
};

// XLA's threads flush subnormals, so that a subnormal float or double may also become 0.
constexpr Narrow kBf16 = {
    "bf16", DType::kBFloat16,
    {.relative = 0x1p-8, .absolute = 0x1p-126, .range = 0x1.fep127},
    &Kernels::float_to_bfloat16, &Kernels::bfloat16_to_float,
    &Kernels::double_to_bfloat16, &Kernels::bfloat16_to_double};
constexpr Narrow kFp16 = {
    "fp16", DType::kFloat16,
    {.relative = 0x1p-11, .absolute = 0x1p-25, .range = 65504},
    &Kernels::float_to_float16, &Kernels::float16_to_float,
    &Kernels::double_to_float16, &Kernels::float16_to_double};

constexpr DTypeSet kWide = SetOf(DType::kFloat32) | SetOf(DType::kFloat64);

class Cast final : public Codec {
 public:
  explicit Cast(const Narrow& narrow)
      : Codec({.spec = std::string(narrow.name),
               .fixed_rate = true,
               .one_pass_merge = true,
               .dtypes = kWide}),
        narrow_(narrow) {}

  ErrorBound Bound(DType) const override { return narrow_.bound; }
  DType EncodedDType(DType) const override { return narrow_.dtype; }
  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    return CheckedBytes(count, SizeBytes(dtype)) < 0 ? -1 : count * SizeBytes(narrow_.dtype);
  }

 protected:
  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                   const CodingContext&) const override {
    (BestKernels().*(dtype == DType::kFloat32 ? narrow_.from_float : narrow_.from_double))(
        dst, src, count);
    return count * SizeBytes(narrow_.dtype);
  }

  Status DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                  const CodingContext&) const override {
    Widen(dtype, src.data(), dst, count);
    return Status::Ok();
  }

  Status DoDecodeMerge(DType dtype, std::span<const std::byte> src, ReduceOp op, DType acc_dtype,
                       void* acc, int64_t count, const CodingContext&) const override {
    alignas(64) std::byte values[kMergeValues * sizeof(double)];
    auto* to = static_cast<std::byte*>(acc);
    for (int64_t i = 0; i < count; i += kMergeValues) {
      const int64_t n = std::min(kMergeValues, count - i);
      Widen(dtype, src.data() + i * SizeBytes(narrow_.dtype), values, n);
      MergeValues(dtype, values, op, acc_dtype, to + i * SizeBytes(acc_dtype), n);
    }
    return Status::Ok();
  }

 private:
  void Widen(DType dtype, const std::byte* src, void* dst, int64_t count) const {
    (BestKernels().*(dtype == DType::kFloat32 ? narrow_.to_float : narrow_.to_double))(dst, src,
                                                                                      count);
  }

  const Narrow& narrow_;
};

template <const Narrow& narrow>
std::unique_ptr<const Codec> Make(const CodecOptions&) {
  return std::make_unique<Cast>(narrow);
}

}  // namespace

std::span<const CodecInfo> CastRows() {
  static const CodecInfo rows[] = {
      {.name = "bf16",
       .description = "float32 and float64 as bfloat16, rounded to nearest even",
       .ratio = "2 for float32, 4 for float64",
       .error = "2^-8 of the value",
       .dtypes = kWide,
       .make = &Make<kBf16>},
      {.name = "fp16",
       .description = "float32 and float64 as float16, rounded to nearest even",
       .ratio = "2 for float32, 4 for float64",
       .error = "2^-11 of the value, at least 2^-25; beyond 65504 infinity",
       .dtypes = kWide,
       .make = &Make<kFp16>}};
  return rows;
}

}  // namespace jaxccomp
