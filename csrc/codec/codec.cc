#include "codec/codec.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "codec/difference.h"
#include "codec/merge.h"

namespace jaxccomp {
namespace {

// Keys of workspace buffers.
struct DifferenceValues {};
struct DecodedDifference {};
struct DecodedValues {};

CodingContext WithoutRef(CodingContext context) {
  context.ref = nullptr;
  return context;
}

// The caller's values bound the memory, but the allocation can still fail.
template <typename F>
auto WithoutThrowing(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return Status(Code::kUnavailable, "there is no memory for the workspace of a codec");
  }
}

}  // namespace

int64_t CheckedBytes(int64_t count, int64_t size_bytes) {
  if (count < 0 || count > std::numeric_limits<int64_t>::max() / size_bytes) return -1;
  return count * size_bytes;
}

Status Codec::Invalid(const std::string& what) const {
  return {Code::kDataLoss, "codec '" + traits_.spec + "': " + what};
}

Status Codec::Check(DType dtype, int64_t count) const {
  if (!Supports(dtype)) {
    return {Code::kUnimplemented, "codec '" + traits_.spec + "' does not code " +
                                      std::string(Name(dtype)) + ": such values travel raw"};
  }
  if (CheckedBytes(count, SizeBytes(dtype)) < 0 || MaxEncodedBytes(dtype, count) < 0) {
    return {Code::kInvalidArgument, "codec '" + traits_.spec + "': " + std::to_string(count) +
                                        " is not a possible count of values of " +
                                        std::string(Name(dtype))};
  }
  return Status::Ok();
}

Status Codec::CheckEncoded(DType dtype, std::span<const std::byte> src, int64_t count) const {
  if (Status status = Check(dtype, count); !status.ok()) return status;
  const int64_t maximum = MaxEncodedBytes(dtype, count), minimum = MinEncodedBytes(dtype, count);
  const auto bytes = static_cast<int64_t>(src.size());
  if (bytes >= minimum && bytes <= maximum) return Status::Ok();
  const std::string expected = minimum == maximum
                                   ? std::to_string(maximum)
                                   : std::to_string(minimum) + " to " + std::to_string(maximum);
  return Invalid(std::to_string(bytes) + " bytes arrived where " + std::to_string(count) +
                 " values of " + std::string(Name(dtype)) + " take " + expected);
}

Result<int64_t> Codec::Encode(DType dtype, const void* src, int64_t count,
                              std::span<std::byte> dst, const CodingContext& context) const {
  if (Status status = Check(dtype, count); !status.ok()) return status;
  const int64_t maximum = MaxEncodedBytes(dtype, count);
  if (static_cast<uint64_t>(maximum) > dst.size()) {
    return Status(Code::kInvalidArgument,
                  "codec '" + traits_.spec + "': encoding " + std::to_string(count) +
                      " values of " + std::string(Name(dtype)) + " needs room for " +
                      std::to_string(maximum) + " bytes, the buffer has " +
                      std::to_string(dst.size()));
  }
  if (count == 0 && maximum == 0) return int64_t{0};
  return WithoutThrowing([&]() -> Result<int64_t> {
    if (context.ref == nullptr || traits_.takes_reference) {
      return DoEncode(dtype, src, count, dst.data(), context);
    }
    std::byte* difference =
        context.workspace.Bytes<DifferenceValues>(count * SizeBytes(dtype));
    Subtract(dtype, traits_.lossless, src, context.ref, difference, count);
    return DoEncode(dtype, difference, count, dst.data(), WithoutRef(context));
  });
}

Status Codec::Decode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                     const CodingContext& context) const {
  if (Status status = CheckEncoded(dtype, src, count); !status.ok()) return status;
  if (count == 0 && src.empty()) return Status::Ok();
  return WithoutThrowing([&]() -> Status {
    if (context.ref == nullptr || traits_.takes_reference) {
      return DoDecode(dtype, src, dst, count, context);
    }
    return DecodeWithRef(dtype, src, dst, count, context);
  });
}

Status Codec::DecodeWithRef(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                            const CodingContext& context) const {
  std::byte* difference = context.workspace.Bytes<DecodedDifference>(count * SizeBytes(dtype));
  Status status = DoDecode(dtype, src, difference, count, WithoutRef(context));
  if (status.ok()) Add(dtype, traits_.lossless, difference, context.ref, dst, count);
  return status;
}

Status Codec::DecodeMerge(DType dtype, std::span<const std::byte> src, ReduceOp op,
                          DType acc_dtype, void* acc, int64_t count,
                          const CodingContext& context) const {
  if (Status status = CheckEncoded(dtype, src, count); !status.ok()) return status;
  if (Status status = CheckReducible(dtype, op, false); !status.ok()) return status;
  if (acc_dtype != dtype && !(IsHalf(dtype) && acc_dtype == DType::kFloat32)) {
    return {Code::kInvalidArgument, "codec '" + traits_.spec + "': " + std::string(Name(dtype)) +
                                        " cannot be merged into " + std::string(Name(acc_dtype))};
  }
  if (count == 0 && src.empty()) return Status::Ok();
  return WithoutThrowing([&]() -> Status {
    if (context.ref == nullptr || traits_.takes_reference) {
      return DoDecodeMerge(dtype, src, op, acc_dtype, acc, count, context);
    }
    std::byte* values = context.workspace.Bytes<DecodedValues>(count * SizeBytes(dtype));
    Status status = DecodeWithRef(dtype, src, values, count, context);
    if (status.ok()) MergeValues(dtype, values, op, acc_dtype, acc, count);
    return status;
  });
}

Result<bool> Codec::KeepLost(DType dtype, std::span<const std::byte> src, void* values, int64_t count,
                             const CodingContext& context) const {
  if (Status status = CheckEncoded(dtype, src, count); !status.ok()) return status;
  if (count == 0) return false;
  bool done = false;
  Status status = WithoutThrowing([&]() -> Status {
    const Result<bool> kept = DoKeepLost(dtype, src, values, count, context);
    if (kept.ok()) done = *kept;
    return kept.status();
  });
  if (!status.ok()) return status;
  return done;
}

Status Codec::DoDecodeMerge(DType dtype, std::span<const std::byte> src, ReduceOp op,
                            DType acc_dtype, void* acc, int64_t count,
                            const CodingContext& context) const {
  std::byte* values = context.workspace.Bytes<DecodedValues>(count * SizeBytes(dtype));
  Status status = DoDecode(dtype, src, values, count, context);
  if (status.ok()) MergeValues(dtype, values, op, acc_dtype, acc, count);
  return status;
}

}  // namespace jaxccomp
