// The scratch memory of one call: planes and escapes of one block. It lies in the first- and
// second-level caches; nothing of it outlives the call.
#pragma once

#include <cstdint>

#include "codec/lossless/format.h"
#include "codec/lossless/kernels.h"

namespace jaxccomp::lossless {

// Bytes that a block's coded form can take at most: its words, and for each plane's last group
// less than a byte per bit.
inline constexpr int64_t kMaxBlockBytes = kBlockWords * 8 + 8 * kMaxPlanes;

struct alignas(64) Workspace {
  // Not a multiple of 4 KiB apart, so that the planes do not compete for the same cache lines.
  uint8_t planes[kMaxPlanes][kBlockWords + 2 * kPadBytes];
  uint8_t escapes[kMaxLevels][kBlockWords + 2 * kPadBytes];
  // Of the last plane's first level, encoded before its place is known.
  uint8_t first_escapes[kBlockWords + 2 * kPadBytes];
  uint8_t first_bits[kBlockWords / 4 + kPadBytes];
  uint8_t bits[kBlockWords / 8 + kPadBytes];   // of a sparse plane's first level
  std::byte tail[kMaxBlockBytes + kPadBytes];  // a block next to the end of its buffer
};

}  // namespace jaxccomp::lossless
