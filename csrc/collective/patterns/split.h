// Where a block is cut: into equal parts (one per rank) and into chunks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "collective/schedule.h"
#include "common/round_up.h"

namespace jaxccomp {

inline constexpr int64_t AlignUp(int64_t bytes) { return RoundUp(bytes, kBlockAlign); }

// Start of part `index` of `parts` of `bytes` bytes; parts differ by one kBlockAlign at most.
// index == parts gives the end.
inline constexpr int64_t PartBegin(int64_t bytes, int index, int parts) {
  const int64_t units = AlignUp(bytes) / kBlockAlign;
  const int64_t whole = units / parts, rest = units % parts;
  return std::min(bytes, (whole * index + rest * index / parts) * kBlockAlign);
}

// No range has more chunks than this, so that a chunk's number fits its half of a tag.
inline constexpr int64_t kMaxChunks = 1 << 16;

// The chunk size in use for a range of `bytes`: what was asked for, as an aligned size.
inline constexpr int64_t ChunkBytes(int64_t bytes, int64_t asked_bytes) {
  const int64_t least = (bytes + kMaxChunks - 1) / kMaxChunks;
  return AlignUp(std::max({asked_bytes, least, kBlockAlign}));
}

}  // namespace jaxccomp
