#include "cuda/stage/packed_codec.h"

#include <cstring>

#include "common/round_up.h"

namespace jaxccomp {
namespace {

// The alignment of each buffer: a kernel writes the length at its start.
constexpr int64_t kAlignment = 16;

class PackedCodec final : public Codec {
 public:
  explicit PackedCodec(const Codec& codec)
      : Codec({.spec = codec.traits().spec, .lossless = true, .dtypes = SetOf(kPackedDType)}) {}

  int64_t MaxEncodedBytes(DType, int64_t count) const override { return count; }
  int64_t MinEncodedBytes(DType, int64_t count) const override {
    return count > 0 ? kPackedLengthBytes : 0;
  }

 private:
  Result<int64_t> DoEncode(DType, const void* src, int64_t count, std::byte* dst,
                           const CodingContext&) const override {
    const int64_t bytes = LengthAt(src);
    if (bytes < 0 || bytes > count - kPackedLengthBytes) {
      return Status(Code::kInternal, "codec '" + traits().spec + "' on a GPU made a code of " +
                                         std::to_string(bytes) + " bytes in a buffer of " +
                                         std::to_string(count));
    }
    std::memcpy(dst, src, static_cast<size_t>(kPackedLengthBytes + bytes));
    return kPackedLengthBytes + bytes;
  }

  Status DoDecode(DType, std::span<const std::byte> src, void* dst, int64_t,
                  const CodingContext&) const override {
    if (LengthAt(src.data()) != std::ssize(src) - kPackedLengthBytes) {
      return Invalid("a code arrived that has not the length that it says");
    }
    std::memcpy(dst, src.data(), src.size());
    return Status::Ok();
  }

  static int64_t LengthAt(const void* buffer) {
    int64_t bytes = 0;
    std::memcpy(&bytes, buffer, sizeof(bytes));
    return bytes;
  }
};

}  // namespace

int64_t PackedBytes(const Codec& codec, DType dtype, int64_t count) {
  const int64_t maximum = codec.MaxEncodedBytes(dtype, count);
  if (maximum < 0) return -1;
  return RoundUp(kPackedLengthBytes + maximum, kAlignment);
}

std::shared_ptr<const Codec> MakePackedCodec(const Codec& codec) {
  return std::make_shared<PackedCodec>(codec);
}

}  // namespace jaxccomp
