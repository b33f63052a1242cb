// Scratch memory of one call: planes and escapes of one block. It fits in the first- and second-level
// caches. Its contents are not used by later calls.
#pragma once

#include <cstdint>

#include "codec/lossless/format.h"
#include "codec/lossless/kernels.h"

namespace jaxccomp::lossless {

// An upper bound of a block's coded bytes: its words, and less than a byte per bit of each plane's last group.
inline constexpr int64_t kMaxBlockBytes = kBlockWords * 8 + 8 * kMaxPlanes;

struct alignas(64) Workspace {
  // The distance between planes is not a multiple of 4 KiB, so that they do not compete for the same cache sets.
  uint8_t planes[kMaxPlanes][kBlockWords + 2 * kPadBytes];
  uint8_t escapes[kMaxLevels][kBlockWords + 2 * kPadBytes];
  // The last plane's first level, if encoded before its position in the output is known.
  uint8_t first_escapes[kBlockWords + 2 * kPadBytes];
  uint8_t first_bits[kBlockWords / 4 + kPadBytes];
  uint8_t bits[kBlockWords / 8 + kPadBytes];   // a sparse plane's first level
  std::byte tail[kMaxBlockBytes + kPadBytes];  // a padded copy of a block near the end of its buffer
};

}  // namespace jaxccomp::lossless
