#include "codec/sizes.h"

#include <limits>
#include <string>

namespace jaxccomp {
namespace {

std::string Describe(std::string_view codec, DType dtype, int64_t count) {
  std::string text = "codec '";
  text.append(codec).append("', ").append(std::to_string(count)).append(" values of ");
  text.append(Name(dtype));
  return text;
}

}  // namespace

int64_t CheckedBytes(int64_t count, int64_t size_bytes) {
  if (count < 0 || count > std::numeric_limits<int64_t>::max() / size_bytes) return -1;
  return count * size_bytes;
}

Status CheckEncode(std::string_view codec, DType dtype, int64_t count, int64_t encoded_bytes,
                   std::span<std::byte> dst) {
  if (CheckedBytes(count, SizeBytes(dtype)) < 0) {
    return {Code::kInvalidArgument, Describe(codec, dtype, count) + ": not a possible count"};
  }
  if (static_cast<uint64_t>(encoded_bytes) > dst.size()) {
    return {Code::kInvalidArgument, Describe(codec, dtype, count) + ": encoding needs " +
                                        std::to_string(encoded_bytes) + " bytes, the buffer has " +
                                        std::to_string(dst.size())};
  }
  return Status::Ok();
}

Status CheckDecode(std::string_view codec, DType dtype, int64_t count, int64_t encoded_bytes,
                   std::span<const std::byte> src) {
  if (CheckedBytes(count, SizeBytes(dtype)) < 0) {
    return {Code::kInvalidArgument, Describe(codec, dtype, count) + ": not a possible count"};
  }
  if (static_cast<uint64_t>(encoded_bytes) != src.size()) {
    return {Code::kDataLoss, Describe(codec, dtype, count) + ": " + std::to_string(src.size()) +
                                 " bytes arrived where the encoding has " +
                                 std::to_string(encoded_bytes)};
  }
  return Status::Ok();
}

Status UnsupportedDType(std::string_view codec, DType dtype) {
  std::string message = "codec '";
  message.append(codec).append("' does not code ").append(Name(dtype));
  return {Code::kUnimplemented, message + ": such values travel raw"};
}

}  // namespace jaxccomp
