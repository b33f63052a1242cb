// Format of a code block: for each part the number of its encoded bytes, and these bytes. They begin with the checksum
// of the part's reference, if it has one. Parts of a dtype that the codec does not support are stored unencoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "codec/codec.h"
#include "common/status.h"
#include "execution/operation.h"
#include "execution/plan.h"

namespace jaxccomp {

inline constexpr int64_t kCodeLengthBytes = sizeof(int64_t);
inline constexpr int64_t kReferenceChecksumBytes = sizeof(uint32_t);

// The codec of parts of that dtype; null: these parts are not encoded.
inline const Codec* CodecFor(const Plan& plan, DType dtype) {
  return plan.codec != nullptr && plan.codec->Supports(dtype) ? plan.codec.get() : nullptr;
}

// Maximum number of bytes of a part of `bytes` in a code block, with its length and checksum.
int64_t MaxCodeBytes(const Codec* codec, DType dtype, int64_t bytes);

// Reads blocks that came from other ranks and may be invalid.
class CodeReader {
 public:
  explicit CodeReader(const Operation::Block& block)
      : rest_(block.buffer.get(), static_cast<size_t>(block.used_bytes)) {}

  // The bytes of the next part; kDataLoss if there are none.
  Status Next(std::span<const std::byte>* code);
  // kDataLoss if the block has more bytes.
  Status Finish() const { return rest_.empty() ? Status::Ok() : Broken(); }

 private:
  static Status Broken();

  std::span<const std::byte> rest_;
};

}  // namespace jaxccomp
