// The codec "lossless": hierarchical bit planes over the byte planes of a chunk.
//
// Words are cut into byte planes such that a float's exponent has its own plane. A plane is sent raw,
// dropped if constant, or coded. A level codes the three commonest bytes with two bits (or the
// commonest with one); the last code is an escape. Escaped bytes are compacted and coded by the next
// level, up to six in all; the rest is sent raw. Coding and decoding use vector compares, compressions
// and expansions, without table walks or dependencies between bits. The format:
// docs/wire_format_lossless.md.
//
// Prior art: trees of bit planes with compaction: PivCo-Huffman (arXiv 2606.05765). Only the exponents
// of weights compress: ZipNN (arXiv 2411.05239), DFloat11 (arXiv 2504.11651).
#include <limits>

#include "codec/lossless/decode.h"
#include "codec/lossless/encode.h"
#include "codec/lossless/kernels.h"
#include "codec/lossless/workspace.h"
#include "codec/merge.h"
#include "codec/rows.h"

namespace jaxccomp {
namespace {

using lossless::LayoutOf;

// Key of the workspace buffer of one decoded block.
struct MergedBlock {};

class Lossless final : public Codec {
 public:
  Lossless()
      : Codec({.spec = "lossless",
               .lossless = true,
               .one_pass_merge = true,
               .takes_reference = true,
               .dtypes = kAllDTypes}) {}

  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    // Up to this, no sum or product in the bound overflows.
    constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max() / 4;
    const int64_t bytes = CheckedBytes(count, SizeBytes(dtype));
    if (bytes < 0 || bytes > kMaxBytes) return -1;
    return lossless::EncodeBoundBytes(LayoutOf(dtype).layout, count * LayoutOf(dtype).words);
  }

  int64_t MinEncodedBytes(DType dtype, int64_t count) const override {
    return lossless::MinEncodedBytes(LayoutOf(dtype).layout, count * LayoutOf(dtype).words);
  }

 protected:
  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                   const CodingContext& context) const override {
    return lossless::Encode(lossless::BestKernels(), LayoutOf(dtype).layout, src, context.ref,
                            count * LayoutOf(dtype).words, dst,
                            context.workspace.Get<lossless::Workspace>());
  }

  Status DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                  const CodingContext& context) const override {
    auto* out = static_cast<std::byte*>(dst);
    return ForEachBlock(dtype, src, count, context,
                        [&](lossless::Decoder& decoder, int64_t bytes, const std::byte* ref) {
                          Status status = decoder.Next(out, ref);
                          out += bytes;
                          return status;
                        });
  }

  Status DoDecodeMerge(DType dtype, std::span<const std::byte> src, ReduceOp op, DType acc_dtype,
                       void* acc, int64_t count, const CodingContext& context) const override {
    std::byte* const block = context.workspace.Bytes<MergedBlock>(lossless::kBlockWords * 8);
    auto* to = static_cast<std::byte*>(acc);
    return ForEachBlock(dtype, src, count, context,
                        [&](lossless::Decoder& decoder, int64_t bytes, const std::byte* ref) {
                          Status status = decoder.Next(block, ref);
                          if (!status.ok()) return status;
                          const int64_t n = bytes / SizeBytes(dtype);
                          MergeValues(dtype, block, op, acc_dtype, to, n);
                          to += n * SizeBytes(acc_dtype);
                          return status;
                        });
  }

 private:
  // Calls next(decoder, bytes, ref) for each block; `bytes`: its decoded size.
  template <typename Next>
  static Status ForEachBlock(DType dtype, std::span<const std::byte> src, int64_t count,
                             const CodingContext& context, Next next) {
    const auto [layout, words] = LayoutOf(dtype);
    lossless::Decoder decoder(lossless::BestKernels(),
                              context.workspace.Get<lossless::Workspace>());
    auto* ref = static_cast<const std::byte*>(context.ref);
    Status status = decoder.Open(layout, src, count * words, ref != nullptr);
    while (status.ok() && decoder.next_words() > 0) {
      const int64_t bytes = decoder.next_words() * Info(layout).word_bytes;
      status = next(decoder, bytes, ref);
      if (ref != nullptr) ref += bytes;
    }
    return status;
  }
};

}  // namespace

std::span<const CodecInfo> LosslessRows() {
  static const CodecInfo rows[] = {
      {.name = "lossless",
       .description = "bit for bit: exponents and other predictable bytes in short codes",
       .ratio = "1.5 for bfloat16 and 1.2 for float32 weights, 2.9 for float32 made of bfloat16",
       .lossless = true,
       .dtypes = kAllDTypes,
       .make = [](const CodecOptions&) { return std::unique_ptr<const Codec>(new Lossless()); }}};
  return rows;
}

}  // namespace jaxccomp
