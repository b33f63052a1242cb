// The codes in a block (codec/code_pieces.h). Parts whose dtype the codec does not take lie there as they
// are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "codec/code_pieces.h"
#include "codec/codec.h"
#include "common/status.h"
#include "execution/operation.h"
#include "execution/plan.h"

namespace jaxccomp {

// The codec of parts of that dtype; null: as they are.
inline const Codec* CodecFor(const Plan& plan, DType dtype) {
  return plan.codec != nullptr && plan.codec->Supports(dtype) ? plan.codec.get() : nullptr;
}

// The most that a part takes in a block. A multiple of what a length is aligned to, so that parts
// can be coded side by side before their sizes are known (device_compute.cc).
int64_t MostCodeBytes(const Codec* codec, DType dtype, int64_t bytes);

// Reads blocks that come from the wire and are not trusted.
class CodeReader {
 public:
  explicit CodeReader(const Operation::Block& block) : in_pieces_(block.in_pieces.get()) {
    if (in_pieces_ != nullptr) pieces_ = in_pieces_->pieces;
    else rest_ = {block.buffer.get(), static_cast<size_t>(block.used_bytes)};
  }

  // The bytes of the next part. kDataLoss when there are none.
  Status Next(std::span<const std::byte>* code);
  // The same, without the checksum of its reference, which it has.
  Status NextReferenced(std::span<const std::byte>* code, uint32_t* ref_checksum);
  // That was all. kDataLoss when there is more.
  Status Finish() const { return rest_.empty() && pieces_.empty() ? Status::Ok() : Broken(); }

 private:
  static Status Broken();

  const CodeInPieces* const in_pieces_;   // null: in `rest_`
  std::span<const CodePiece> pieces_;
  std::span<const std::byte> rest_;
};

}  // namespace jaxccomp
