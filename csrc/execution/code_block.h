// The codes in a block: per part its length, and its bytes, which begin with the checksum of the part's
// reference if it has one. Parts whose dtype the codec does not take lie there as they are.
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

// The codec of parts of that dtype; null: as they are.
inline const Codec* CodecFor(const Plan& plan, DType dtype) {
  return plan.codec != nullptr && plan.codec->Supports(dtype) ? plan.codec.get() : nullptr;
}

// The most that a part takes in a block.
int64_t MostCodeBytes(const Codec* codec, DType dtype, int64_t bytes);

// Reads blocks that come from the wire and are not trusted.
class CodeReader {
 public:
  explicit CodeReader(const Operation::Block& block)
      : rest_(block.buffer.get(), static_cast<size_t>(block.used_bytes)) {}

  // The bytes of the next part. kDataLoss when there are none.
  Status Next(std::span<const std::byte>* code);
  // That was all. kDataLoss when there is more.
  Status Finish() const { return rest_.empty() ? Status::Ok() : Broken(); }

 private:
  static Status Broken();

  std::span<const std::byte> rest_;
};

}  // namespace jaxccomp
