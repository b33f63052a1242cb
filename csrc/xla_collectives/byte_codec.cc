#include "xla_collectives/byte_codec.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace jaxccomp {
namespace {

// The types that are tried; their positions are part of the encoding. Integers are coded like the bytes of their words.
constexpr DType kTried[] = {DType::kOpaque8, DType::kUInt16,   DType::kBFloat16, DType::kFloat16,
                            DType::kUInt32,  DType::kFloat32, DType::kUInt64,   DType::kFloat64};
constexpr int64_t kSampleBytes = 4096, kSampleAlign = 64;

struct Sample {};   // key of the workspace buffer of a sample's encoding

class ByteCodec final : public Codec {
 public:
  explicit ByteCodec(std::shared_ptr<const Codec> codec)
      : Codec({.spec = codec->traits().spec,
               .lossless = true,
               .slow = codec->traits().slow,
               .dtypes = SetOf(DType::kOpaque8)}),
        codec_(std::move(codec)) {}

  int64_t MaxEncodedBytes(DType, int64_t count) const override {
    int64_t longest = 0;
    for (const DType dtype : kTried) {
      const int64_t bytes = codec_->MaxEncodedBytes(dtype, count / SizeBytes(dtype));
      if (bytes < 0 || count < 0) return -1;
      longest = std::max(longest, bytes + count % SizeBytes(dtype));
    }
    return count == 0 ? 0 : 1 + longest;
  }

 protected:
  Result<int64_t> DoEncode(DType, const void* src, int64_t count, std::byte* dst,
                           const CodingContext& context) const override {
    if (count == 0) return 0;
    const auto* from = static_cast<const std::byte*>(src);
    const size_t shortest = FindShortest(from, count, context);
    const DType dtype = kTried[shortest];
    const int64_t values = count / SizeBytes(dtype), rest = count % SizeBytes(dtype);
    dst[0] = static_cast<std::byte>(shortest);
    const int64_t room = codec_->MaxEncodedBytes(dtype, values);
    Result<int64_t> encoded = codec_->Encode(dtype, src, values, {dst + 1, static_cast<size_t>(room)}, context);
    if (!encoded.ok()) return encoded;
    std::memcpy(dst + 1 + *encoded, from + count - rest, static_cast<size_t>(rest));
    return 1 + *encoded + rest;
  }

  Status DoDecode(DType, std::span<const std::byte> src, void* dst, int64_t count,
                  const CodingContext& context) const override {
    if (count == 0) return src.empty() ? Status::Ok() : Invalid("bytes after the last value");
    if (src.empty() || static_cast<size_t>(src[0]) >= std::size(kTried)) return Invalid("the type is not known");
    const DType dtype = kTried[static_cast<size_t>(src[0])];
    const int64_t values = count / SizeBytes(dtype), rest = count % SizeBytes(dtype);
    if (std::ssize(src) < 1 + rest) return Invalid("the last bytes are missing");
    const auto encoded = src.subspan(1, src.size() - 1 - static_cast<size_t>(rest));
    if (Status status = codec_->Decode(dtype, encoded, dst, values, context); !status.ok()) return status;
    std::memcpy(static_cast<std::byte*>(dst) + count - rest, src.data() + src.size() - rest, static_cast<size_t>(rest));
    return Status::Ok();
  }

 private:
  // Returns the index in kTried of the type as which a sample in the middle has the shortest encoding.
  size_t FindShortest(const std::byte* src, int64_t count, const CodingContext& context) const {
    const int64_t bytes = std::min(count, kSampleBytes) / kSampleAlign * kSampleAlign;
    if (bytes == 0) return 0;
    const std::byte* const sample = src + (count - bytes) / 2 / kSampleAlign * kSampleAlign;
    size_t shortest = 0;
    int64_t least_bytes = -1;
    for (size_t i = 0; i < std::size(kTried); ++i) {
      const int64_t values = bytes / SizeBytes(kTried[i]), room = codec_->MaxEncodedBytes(kTried[i], values);
      std::byte* const to = context.workspace.Bytes<Sample>(room);
      const Result<int64_t> encoded =
          codec_->Encode(kTried[i], sample, values, {to, static_cast<size_t>(room)}, CodingContext(context.workspace));
      if (!encoded.ok() || (least_bytes >= 0 && *encoded >= least_bytes)) continue;
      shortest = i;
      least_bytes = *encoded;
    }
    return shortest;
  }

  const std::shared_ptr<const Codec> codec_;
};

}  // namespace

std::shared_ptr<const Codec> MakeByteCodec(std::shared_ptr<const Codec> codec) {
  return std::make_shared<ByteCodec>(std::move(codec));
}

}  // namespace jaxccomp
