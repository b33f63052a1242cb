// The codec "raw": the unencoded bytes.
#include <cstring>

#include "codec/merge.h"
#include "codec/rows.h"

namespace jaxccomp {
namespace {

class Raw final : public Codec {
 public:
  Raw()
      : Codec({.spec = "raw",
               .lossless = true,
               .fixed_rate = true,
               .one_pass_merge = true,
               .dtypes = kAllDTypes}) {}

  DType EncodedDType(DType dtype) const override { return dtype; }

  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    return CheckedBytes(count, SizeBytes(dtype));
  }

 protected:
  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                   const CodingContext&) const override {
    const int64_t bytes = count * SizeBytes(dtype);
    std::memcpy(dst, src, bytes);
    return bytes;
  }

  Status DoDecode(DType, std::span<const std::byte> src, void* dst, int64_t,
                  const CodingContext&) const override {
    std::memcpy(dst, src.data(), src.size());
    return Status::Ok();
  }

  Status DoDecodeMerge(DType dtype, std::span<const std::byte> src, ReduceOp op, DType acc_dtype,
                       void* acc, int64_t count, const CodingContext&) const override {
    MergeValues(dtype, src.data(), op, acc_dtype, acc, count);
    return Status::Ok();
  }
};

}  // namespace

std::span<const CodecInfo> RawRows() {
  static const CodecInfo rows[] = {{.name = "raw",
                                    .description = "the bytes as they are",
                                    .ratio = "1",
                                    .lossless = true,
                                    .dtypes = kAllDTypes,
                                    .make = [](const CodecOptions&) {
                                      return std::unique_ptr<const Codec>(new Raw());
                                    }}};
  return rows;
}

}  // namespace jaxccomp
