// Constants and sizes of the wire format of the codec "lossless" (docs/wire_format_lossless.md). All
// of it is little-endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/lossless/layout.h"

namespace jaxccomp::lossless {

// Words and bit planes are copied in the machine's byte order.
static_assert(std::endian::native == std::endian::little);

inline constexpr uint8_t kVersion = 1;

// Chunk header: version, layout, flags, 0, low 32 bits of the count of words.
inline constexpr int64_t kChunkHeaderBytes = 8;
inline constexpr uint8_t kFlagDelta = 1;   // words were XORed with a reference

// A segment has its own symbols; a block has its own entry in the segment's index.
inline constexpr int64_t kSegmentWords = 1 << 15;
inline constexpr int64_t kBlockWords = 1 << 14;

enum class SegmentKind : uint8_t { kStored = 0, kPlanes = 1 };

// A coded plane has up to six levels; each has codes of one bit (a symbol, or escape) or of two
// (three symbols, or escape).
inline constexpr int kMaxLevels = 6;
inline constexpr int kMaxSymbols = 3 * kMaxLevels;
inline constexpr int SymbolsOfLevel(int code_bits) { return code_bits == 2 ? 3 : code_bits; }

struct PlaneHeader {
  uint8_t code_bits[kMaxLevels] = {};   // of each level; 0 ends the list; all 0: a raw plane
  uint8_t symbols[kMaxLevels][3] = {};

  bool coded() const { return code_bits[0] != 0; }
  int levels() const {
    int n = 0;
    while (n < kMaxLevels && code_bits[n] != 0) ++n;
    return n;
  }
};
inline constexpr int64_t kDescriptorBytes = 2;   // the code widths, two bits each

// The mode of one coded plane in one block, in the index.
enum class BlockMode : uint8_t {
  kConstant = 0,   // every byte is the first symbol
  kRaw = 1,
  kCoded = 2,
  kSparse = 3,     // coded; only the nonzero bytes of the first level's bits are sent
};

// An entry has 16 bits, and 16 more for each level of its plane.
inline constexpr int64_t EntryBytes(int64_t levels) { return 2 + 2 * levels; }

struct BlockEntry {
  BlockMode mode = BlockMode::kConstant;
  int64_t set_bytes = 0;                 // kSparse: nonzero bytes
  int64_t escapes[kMaxLevels] = {};      // escaped bytes of each level, which the next level codes
};

// The bytes of `width` bit planes of `count` values: for each 64 values `width` words of 64 bits; for
// the rest `width` pieces of as few bytes as possible.
inline constexpr int64_t BitPlaneBytes(int64_t width, int64_t count) {
  return width * ((count >> 6 << 3) + (((count & 63) + 7) >> 3));
}

inline constexpr int64_t RawPlaneBytes(int64_t width, int64_t count) {
  return width == 8 ? count : BitPlaneBytes(width, count);
}

// Bytes of a coded plane in a block of `count` values; `entry` is consistent with `header`.
inline int64_t CodedPlaneBytes(const PlaneHeader& header, const BlockEntry& entry, int64_t count) {
  int64_t bytes = 0;
  for (int level = 0; level < kMaxLevels && header.code_bits[level] != 0; ++level) {
    bytes += BitPlaneBytes(header.code_bits[level], count);
    count = entry.escapes[level];
  }
  return bytes + count;
}

inline uint64_t LoadLittleEndian(const std::byte* at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(at[i]) << (8 * i);
  return value;
}

inline void StoreLittleEndian(std::byte* at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

}  // namespace jaxccomp::lossless
