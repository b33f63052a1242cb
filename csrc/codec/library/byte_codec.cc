// Wire format: a byte: 0, then the values unencoded; or 1, then the library's encoding.
#include "codec/library/byte_codec.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "codec/library/shuffle.h"

namespace jaxccomp::library {
namespace {

constexpr std::byte kStored{0};
constexpr std::byte kCompressed{1};

struct Planes {};   // key of a workspace buffer

}  // namespace

ByteCodec::ByteCodec(const CodecOptions& options, bool slow)
    : Codec({.spec = options.spec(), .lossless = true, .slow = slow, .dtypes = kAllDTypes}),
      shuffle_(options.Text("shuffle") == "byte") {}

int64_t ByteCodec::MaxEncodedBytes(DType dtype, int64_t count) const {
  const int64_t bytes = CheckedBytes(count, SizeBytes(dtype));
  if (bytes == std::numeric_limits<int64_t>::max()) return -1;
  return bytes <= 0 ? bytes : 1 + bytes;
}

int64_t ByteCodec::MinEncodedBytes(DType dtype, int64_t count) const {
  const int64_t bytes = count * SizeBytes(dtype);
  return bytes == 0 ? 0 : 1 + std::min(bytes, MinCompressedBytes(bytes));
}

Result<int64_t> ByteCodec::DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                                    const CodingContext& context) const {
  const int64_t bytes = count * SizeBytes(dtype), word_bytes = WordBytes(dtype);
  const auto* from = static_cast<const std::byte*>(src);
  if (shuffle_ && word_bytes > 1) {
    std::byte* planes = context.workspace.Bytes<Planes>(bytes);
    BestShuffleKernels().shuffle(from, bytes / word_bytes, word_bytes, planes);
    from = planes;
  }
  // With bytes - 1 of room, incompressible values do not fit, and are stored.
  const int64_t compressed = Compress(from, bytes, dst + 1, bytes - 1, context.workspace);
  dst[0] = compressed > 0 ? kCompressed : kStored;
  if (compressed > 0) return 1 + compressed;
  std::memcpy(dst + 1, src, bytes);
  return 1 + bytes;
}

Status ByteCodec::DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                           const CodingContext& context) const {
  const int64_t bytes = count * SizeBytes(dtype), word_bytes = WordBytes(dtype);
  const std::byte mode = src[0];
  src = src.subspan(1);
  const auto there = static_cast<int64_t>(src.size());
  if (mode == kStored) {
    if (there != bytes) return Invalid("stored values are not all there");
    std::memcpy(dst, src.data(), bytes);
    return Status::Ok();
  }
  if (mode != kCompressed) return Invalid("the mode is neither stored nor compressed");
  if (there >= bytes) return Invalid("compressed values take more bytes than stored ones");
  auto* to = static_cast<std::byte*>(dst);
  const bool planes = shuffle_ && word_bytes > 1;
  std::byte* out = planes ? context.workspace.Bytes<Planes>(bytes) : to;
  if (!Decompress(src, out, bytes, context.workspace)) {
    return Invalid("the compressed bytes are not " + std::to_string(bytes) + " bytes of values");
  }
  if (planes) BestShuffleKernels().unshuffle(out, bytes / word_bytes, word_bytes, to);
  return Status::Ok();
}

}  // namespace jaxccomp::library
