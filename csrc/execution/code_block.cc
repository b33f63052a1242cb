#include "execution/code_block.h"

#include "common/round_up.h"

namespace jaxccomp {

int64_t MaxCodeBytes(const Codec* codec, DType dtype, int64_t bytes) {
  const int64_t max_bytes =
      kCodeLengthBytes + kReferenceChecksumBytes +
      (codec != nullptr ? codec->MaxEncodedBytes(dtype, bytes / SizeBytes(dtype)) : bytes);
  return RoundUp(max_bytes, kCodeLengthBytes);
}

Status CodeReader::Next(std::span<const std::byte>* code) {
  int64_t code_bytes = 0;
  if (rest_.size() < sizeof(code_bytes)) return Broken();
  std::memcpy(&code_bytes, rest_.data(), sizeof(code_bytes));
  rest_ = rest_.subspan(sizeof(code_bytes));
  if (code_bytes < 0 || code_bytes > static_cast<int64_t>(rest_.size())) return Broken();
  *code = rest_.first(static_cast<size_t>(code_bytes));
  rest_ = rest_.subspan(static_cast<size_t>(code_bytes));
  return Status::Ok();
}

Status CodeReader::Broken() {
  return {Code::kDataLoss, "an encoded message has the wrong length for its parts"};
}

}  // namespace jaxccomp
