#include "codec/pipeline.h"

#include <cstring>

namespace jaxccomp {
namespace {

constexpr int64_t kLengthBytes = 8;

// Key of the workspace buffer of the first stage's output.
struct Between {};

class Pipeline final : public Codec {
 public:
  Pipeline(std::shared_ptr<const Codec> first, std::shared_ptr<const Codec> second)
      : Codec(TraitsOf(*first, *second)),
        first_(std::move(first)),
        second_(std::move(second)),
        prefix_bytes_(first_->traits().fixed_rate ? 0 : kLengthBytes) {}

  ErrorBound Bound(DType dtype) const override { return first_->Bound(dtype); }
  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    return Enclose(dtype, first_->MaxEncodedBytes(dtype, count), &Codec::MaxEncodedBytes);
  }
  int64_t MinEncodedBytes(DType dtype, int64_t count) const override {
    return Enclose(dtype, first_->MinEncodedBytes(dtype, count), &Codec::MinEncodedBytes);
  }
  int64_t MinAloneEncodedBytes(DType dtype, int64_t count) const override {
    return Enclose(dtype, first_->MinAloneEncodedBytes(dtype, count), &Codec::MinEncodedBytes);
  }

 protected:
  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                   const CodingContext& context) const override {
    const int64_t maximum = first_->MaxEncodedBytes(dtype, count);
    std::byte* between = context.workspace.Bytes<Between>(maximum);
    const Result<int64_t> bytes =
        first_->Encode(dtype, src, count, {between, static_cast<size_t>(maximum)}, context);
    if (!bytes.ok()) return bytes.status();
    const auto of_first = static_cast<uint64_t>(bytes.value());
    for (int64_t i = 0; i < prefix_bytes_; ++i) {
      dst[i] = static_cast<std::byte>(of_first >> (8 * i));
    }
    const DType inner = first_->EncodedDType(dtype);
    const int64_t inner_count = bytes.value() / SizeBytes(inner);
    const int64_t room = second_->MaxEncodedBytes(inner, inner_count);
    const CodingContext plain(context.workspace);
    const Result<int64_t> coded =
        second_->Encode(inner, between, inner_count,
                        {dst + prefix_bytes_, static_cast<size_t>(room)}, plain);
    if (!coded.ok()) return coded.status();
    return prefix_bytes_ + coded.value();
  }

  Status DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                  const CodingContext& context) const override {
    auto between = DecodeSecond(dtype, src, count, context);
    if (!between.ok()) return between.status();
    return first_->Decode(dtype, *between, dst, count, context);
  }

  Status DoDecodeMerge(DType dtype, std::span<const std::byte> src, ReduceOp op, DType acc_dtype,
                       void* acc, int64_t count, const CodingContext& context) const override {
    auto between = DecodeSecond(dtype, src, count, context);
    if (!between.ok()) return between.status();
    return first_->DecodeMerge(dtype, *between, op, acc_dtype, acc, count, context);
  }

 private:
  static Traits TraitsOf(const Codec& first, const Codec& second) {
    const Traits &a = first.traits(), &b = second.traits();
    return {.spec = a.spec + "|" + b.spec,
            .lossless = a.lossless && b.lossless,
            .fixed_rate = a.fixed_rate && b.fixed_rate,
            .one_pass_merge = false,
            .takes_reference = a.takes_reference,
            .slow = a.slow || b.slow,
            .runs_on_host = a.runs_on_host && b.runs_on_host,
            .draws_alike = a.draws_alike,
            .dtypes = a.dtypes};
  }

  int64_t Enclose(DType dtype, int64_t bytes,
                  int64_t (Codec::*bound)(DType, int64_t) const) const {
    if (bytes < 0) return -1;
    const DType inner = first_->EncodedDType(dtype);
    const int64_t outer = ((*second_).*bound)(inner, bytes / SizeBytes(inner));
    if (outer < 0 || outer > std::numeric_limits<int64_t>::max() - prefix_bytes_) return -1;
    return prefix_bytes_ + outer;
  }

  Result<std::span<const std::byte>> DecodeSecond(DType dtype, std::span<const std::byte> src,
                                                  int64_t count,
                                                  const CodingContext& context) const {
    const int64_t maximum = first_->MaxEncodedBytes(dtype, count);
    int64_t bytes = maximum;
    if (prefix_bytes_ > 0) {
      if (static_cast<int64_t>(src.size()) < prefix_bytes_) return Invalid("no length arrived");
      uint64_t length = 0;
      for (int64_t i = 0; i < prefix_bytes_; ++i) {
        length |= static_cast<uint64_t>(src[i]) << (8 * i);
      }
      if (length > static_cast<uint64_t>(maximum)) {
        return Invalid("a length of " + std::to_string(length) + " where the first stage has " +
                       std::to_string(maximum) + " bytes at most");
      }
      bytes = static_cast<int64_t>(length);
    }
    const DType inner = first_->EncodedDType(dtype);
    if (bytes % SizeBytes(inner) != 0) {
      return Invalid("a length of " + std::to_string(bytes) + " bytes is not one of whole values");
    }
    std::byte* between = context.workspace.Bytes<Between>(maximum);
    const CodingContext plain(context.workspace);
    Status status = second_->Decode(inner, src.subspan(prefix_bytes_), between,
                                    bytes / SizeBytes(inner), plain);
    if (!status.ok()) return status;
    return std::span<const std::byte>(between, static_cast<size_t>(bytes));
  }

  const std::shared_ptr<const Codec> first_;
  const std::shared_ptr<const Codec> second_;
  const int64_t prefix_bytes_;
};

}  // namespace

std::unique_ptr<const Codec> MakePipeline(std::shared_ptr<const Codec> first,
                                          std::shared_ptr<const Codec> second) {
  return std::make_unique<Pipeline>(std::move(first), std::move(second));
}

}  // namespace jaxccomp
