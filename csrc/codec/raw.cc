#include "codec/raw.h"

#include <cstring>

#include "codec/sizes.h"

namespace jaxccomp {
namespace {

class Raw final : public Codec {
 public:
  const CodecTraits& traits() const override {
    static constexpr CodecTraits kTraits = {.name = "raw",
                                            .description = "the bytes as they are",
                                            .lossless = true,
                                            .fixed_rate = true,
                                            .relative_error = 0};
    return kTraits;
  }

  bool Supports(DType) const override { return true; }

  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    return CheckedBytes(count, SizeBytes(dtype));
  }

  Result<int64_t> Encode(DType dtype, const void* src, int64_t count,
                         std::span<std::byte> dst) const override {
    const int64_t bytes = MaxEncodedBytes(dtype, count);
    if (Status status = CheckEncode(traits().name, dtype, count, bytes, dst); !status.ok()) {
      return status;
    }
    if (bytes > 0) std::memcpy(dst.data(), src, bytes);
    return bytes;
  }

  Status Decode(DType dtype, std::span<const std::byte> src, void* dst,
                int64_t count) const override {
    const int64_t bytes = MaxEncodedBytes(dtype, count);
    if (Status status = CheckDecode(traits().name, dtype, count, bytes, src); !status.ok()) {
      return status;
    }
    if (bytes > 0) std::memcpy(dst, src.data(), bytes);
    return Status::Ok();
  }
};

}  // namespace

const Codec& RawCodec() {
  static const Raw codec;
  return codec;
}

}  // namespace jaxccomp
