// The form of a code block: per part its length, and its bytes, which begin with the checksum of the part's
// reference if it has one. And a code that does not lie in memory like that: in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace jaxccomp {

inline constexpr int64_t kCodeLengthBytes = sizeof(int64_t);
inline constexpr int64_t kReferenceChecksumBytes = sizeof(uint32_t);

// The code of one part of a code block, or a packed message as a whole. Travels as it is.
struct CodePiece {
  int64_t offset = 0;          // from where the memory begins
  int64_t bytes = 0;
  uint32_t ref_checksum = 0;   // of its reference, if it has one
  uint32_t zero = 0;
};

// A code block in memory of a device, its own or another process's.
struct CodeInPieces {
  virtual ~CodeInPieces() = default;

  std::byte* memory = nullptr;   // where pieces count from
  std::vector<CodePiece> pieces;
  bool packed = false;           // raw values; else codes
  bool referenced = false;       // pieces have checksums
  // Where the payload lies as it travels: its head, which copies by the device write and read, and the
  // one piece. Null: it lies in pieces only.
  std::byte* payload = nullptr;
};

}  // namespace jaxccomp
