// The codecs "bf16" and "fp16": floats in a narrower type, rounded once: to nearest even, or ("bf16")
// stochastically with an exact mean.
//
// NaN stays NaN and infinity stays infinity; a value that rounds to nearest to 2^(greatest exponent + 1)
// becomes infinity. Wire format: only the values in the narrow type, little-endian.
#include <algorithm>

#include "codec/cast/kernels.h"
#include "codec/merge.h"
#include "codec/random_bits.h"
#include "codec/rows.h"
#include "reduce/kernels.h"

namespace jaxccomp {
namespace {

struct Narrow {
  DType dtype;
  ErrorBound bound;   // half a unit in the last place, of normal and of subnormal values
  Kernels::Convert Kernels::*from_float;
  Kernels::Convert Kernels::*to_float;
  Kernels::Convert Kernels::*from_double;
  Kernels::Convert Kernels::*to_double;
};

// XLA's threads flush subnormals: a subnormal float or double may become 0.
constexpr Narrow kBf16 = {
    DType::kBFloat16,
    {.relative = 0x1p-8, .absolute = 0x1p-126, .range = 0x1.fep127},
    &Kernels::float_to_bfloat16, &Kernels::bfloat16_to_float,
    &Kernels::double_to_bfloat16, &Kernels::bfloat16_to_double};
constexpr Narrow kFp16 = {
    DType::kFloat16,
    {.relative = 0x1p-11, .absolute = 0x1p-25, .range = 65504},
    &Kernels::float_to_float16, &Kernels::float16_to_float,
    &Kernels::double_to_float16, &Kernels::float16_to_double};

constexpr DTypeSet kWide = SetOf(DType::kFloat32) | SetOf(DType::kFloat64);

class Cast : public Codec {
 public:
  Cast(const Narrow& narrow, const CodecOptions& options)
      : Codec({.spec = options.spec(),
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

// "bf16:rounding=stochastic". Rounding removes 16 bits. A value at fraction f between two neighbouring bfloat16
// is rounded up for f * 2^16 of the 2^16 random numbers, so the mean is exact.
class StochasticBf16 final : public Cast {
 public:
  explicit StochasticBf16(const CodecOptions& options) : Cast(kBf16, options) {}

  // A unit in the last place for all values; the greatest ones are only rounded down.
  ErrorBound Bound(DType dtype) const override {
    ErrorBound bound = {.relative = 0x1p-7, .absolute = kBf16.bound.absolute};
    if (dtype == DType::kFloat64) {   // rounded to float first
      bound.relative += 0x1p-23;
      bound.range = 0x1.fffffefffffffp127;
    }
    return bound;
  }

 protected:
  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                           const CodingContext& context) const override {
    const cast::Kernels& kernels = cast::BestKernels();
    const auto round = dtype == DType::kFloat32 ? kernels.float_to_bfloat16
                                                : kernels.double_to_bfloat16;
    constexpr int64_t kTile = 4096;   // values; their random numbers stay in the first-level cache
    alignas(64) uint16_t room[kTile + kRandomRoom];
    auto* from = static_cast<const std::byte*>(src);
    for (int64_t i = 0; i < count; i += kTile) {
      const int64_t n = std::min(kTile, count - i);
      round(dst + i * SizeBytes(DType::kBFloat16), from + i * SizeBytes(dtype),
            RandomBits(context.key, context.first + i, n, room), n);
    }
    return count * SizeBytes(DType::kBFloat16);
  }
};

std::unique_ptr<const Codec> MakeBf16(const CodecOptions& options) {
  if (options.Text("rounding") == "stochastic") return std::make_unique<StochasticBf16>(options);
  return std::make_unique<Cast>(kBf16, options);
}

std::unique_ptr<const Codec> MakeFp16(const CodecOptions& options) {
  return std::make_unique<Cast>(kFp16, options);
}

constexpr std::string_view kRoundings[] = {"nearest", "stochastic"};
constexpr CodecOption kBf16Options[] = {
    {.name = "rounding",
     .default_value = "nearest",
     .description = "to the nearest, or up or down at random such that the mean is exact",
     .choices = kRoundings}};

}  // namespace

std::span<const CodecInfo> CastRows() {
  static const CodecInfo rows[] = {
      {.name = "bf16",
       .description = "float32 and float64 as bfloat16, rounded to nearest even or at random",
       .ratio = "2 for float32, 4 for float64",
       .error = "2^-8 of the value; twice that when stochastic",
       .dtypes = kWide,
       .options = kBf16Options,
       .make = &MakeBf16},
      {.name = "fp16",
       .description = "float32 and float64 as float16, rounded to nearest even",
       .ratio = "2 for float32, 4 for float64",
       .error = "2^-11 of the value, at least 2^-25; beyond 65504 infinity",
       .dtypes = kWide,
       .make = &MakeFp16}};
  return rows;
}

}  // namespace jaxccomp
