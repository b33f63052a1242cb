// How a code of the stage travels: as a buffer of the most bytes that it may have, which begins with its
// length. Only the length and so many bytes are sent.
#pragma once

#include <cstdint>
#include <memory>

#include "codec/codec.h"
#include "common/dtype.h"

namespace jaxccomp {

inline constexpr DType kPackedDType = DType::kOpaque8;
inline constexpr int64_t kPackedLengthBytes = sizeof(int64_t);

// The size of the buffer for a code of `count` values; -1 where such bytes cannot be counted.
int64_t PackedBytes(const Codec& codec, DType dtype, int64_t count);

// For operations whose operands are such buffers, of codes by the codec of that spec. A part of such an operation
// must not be cut (Problem::chunk_bytes).
std::shared_ptr<const Codec> MakePackedCodec(const Codec& codec);

}  // namespace jaxccomp
