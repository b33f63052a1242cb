// The wire format of the stage's codes. A buffer has room for the longest code, and starts with the length of its
// code. Only the length and the code are sent.
#pragma once

#include <cstdint>
#include <memory>

#include "codec/codec.h"
#include "common/dtype.h"

namespace jaxccomp {

inline constexpr DType kPackedDType = DType::kOpaque8;
inline constexpr int64_t kPackedLengthBytes = sizeof(int64_t);

// The size of the buffer for a code of `count` values; -1 on overflow.
int64_t PackedBytes(const Codec& codec, DType dtype, int64_t count);

// The engine's codec for such buffers, with the spec of `codec`. No algorithm may cut a buffer into chunks (MakePlan
// raises Problem::chunk_bytes).
std::shared_ptr<const Codec> MakePackedCodec(const Codec& codec);

}  // namespace jaxccomp
