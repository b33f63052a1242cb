#include "codec/cast/bf16.h"

#include "codec/sizes.h"
#include "reduce/kernels.h"

namespace jaxccomp {
namespace {

class Bf16 final : public Codec {
 public:
  const CodecTraits& traits() const override {
    static constexpr CodecTraits kTraits = {
        .name = "bf16",
        .description = "float32 and float64 as bfloat16, rounded to nearest even",
        .lossless = false,
        .fixed_rate = true,
        .relative_error = 0x1p-8};   // half a unit in the last of 8 significant bits
    return kTraits;
  }

  bool Supports(DType dtype) const override {
    return dtype == DType::kFloat32 || dtype == DType::kFloat64;
  }

  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    return CheckedBytes(count, Supports(dtype) ? SizeBytes(DType::kBFloat16) : SizeBytes(dtype));
  }

  Result<int64_t> Encode(DType dtype, const void* src, int64_t count,
                         std::span<std::byte> dst) const override {
    if (!Supports(dtype)) return UnsupportedDType(traits().name, dtype);
    const int64_t bytes = MaxEncodedBytes(dtype, count);
    if (Status status = CheckEncode(traits().name, dtype, count, bytes, dst); !status.ok()) {
      return status;
    }
    const Kernels& kernels = BestKernels();
    (dtype == DType::kFloat32 ? kernels.float_to_bfloat16 : kernels.double_to_bfloat16)(
        dst.data(), src, count);
    return bytes;
  }

  Status Decode(DType dtype, std::span<const std::byte> src, void* dst,
                int64_t count) const override {
    if (!Supports(dtype)) return UnsupportedDType(traits().name, dtype);
    const int64_t bytes = MaxEncodedBytes(dtype, count);
    if (Status status = CheckDecode(traits().name, dtype, count, bytes, src); !status.ok()) {
      return status;
    }
    const Kernels& kernels = BestKernels();
    (dtype == DType::kFloat32 ? kernels.bfloat16_to_float : kernels.bfloat16_to_double)(
        dst, src.data(), count);
    return Status::Ok();
  }
};

}  // namespace

const Codec& Bf16Codec() {
  static const Bf16 codec;
  return codec;
}

}  // namespace jaxccomp
