// Boundaries of a block's equal parts (one per rank) and chunks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "collective/schedule.h"
#include "common/round_up.h"

namespace jaxccomp {

inline constexpr int64_t AlignUp(int64_t bytes) { return RoundUp(bytes, kBlockAlign); }

// Start of part `index` of `bytes` bytes in `parts` parts, which differ by at most kBlockAlign. index ==
// parts gives the end.
inline constexpr int64_t PartBegin(int64_t bytes, int index, int parts) {
  const int64_t units = AlignUp(bytes) / kBlockAlign;
  const int64_t whole = units / parts, rest = units % parts;
  return std::min(bytes, (whole * index + rest * index / parts) * kBlockAlign);
}

// The most chunks of a range: a chunk's number has half of a tag's bits.
inline constexpr int64_t kMaxChunks = 1 << 16;

// The chunk size for a range of `bytes`: the requested size, aligned, such that there are at most kMaxChunks.
inline constexpr int64_t ChunkBytes(int64_t bytes, int64_t requested_bytes) {
  const int64_t min_bytes = (bytes + kMaxChunks - 1) / kMaxChunks;
  return AlignUp(std::max({requested_bytes, min_bytes, kBlockAlign}));
}

}  // namespace jaxccomp
