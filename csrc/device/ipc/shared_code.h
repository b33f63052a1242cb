// A message in shared memory of a device (shared_arena.h), which other processes import (device_ipc.h) or
// which a CUDA-aware MPI sends and receives there (device/cuda_aware).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codec/code_pieces.h"
#include "common/memory.h"
#include "device/device.h"
#include "device/shared_arena.h"

namespace jaxccomp {

// What encoding finds out. Its first bytes are as the head of a payload: the length of what follows, and
// with a reference its checksum, which is counted in.
struct FoundSize {
  int64_t code_bytes;
  uint32_t ref_checksum;
  uint32_t zero;
};

struct SharedCode final : CodeInPieces {
  std::shared_ptr<SharedArena::Block> block;   // of one's own
  uint64_t imported = 0;                       // else the number of its descriptor here
  BufferPool::Buffer found;                    // pinned: a FoundSize of each piece
  int64_t found_bytes = 0;

  FoundSize* sizes() const { return reinterpret_cast<FoundSize*>(found.get()); }
};

// Pieces in a block of their own: each may take the most that it can, aligned for kernels.
inline constexpr int64_t kPieceAlign = 16;
inline int64_t RoundUpPiece(int64_t bytes) {
  return (bytes + kPieceAlign - 1) / kPieceAlign * kPieceAlign;
}
inline int64_t EndOf(std::span<const CodePiece> pieces) {
  return pieces.empty() ? 0 : pieces.back().offset + RoundUpPiece(pieces.back().bytes);
}

// The bytes before a code in a payload: its length, and the checksum of its reference.
int64_t HeadBytes(bool packed, bool referenced);
// A code of `bytes` at most, so that its payload is in one.
std::vector<CodePiece> PieceInOne(bool packed, int64_t bytes);
// Once `memory` is known, of such a piece.
void PlacePayload(SharedCode* code);

// What writes the head of a payload from its piece, through `found`.
Device::CopyRun WriteHead(SharedCode* code);
// The piece, from the head that has been copied to `found`, of a payload of so many bytes. kDataLoss
// for a head that cannot be.
Status ReadHead(SharedCode* code, int64_t payload_bytes);

// Copies to host memory in which a payload of these pieces lies. The lengths and checksums between
// them are written at once.
std::vector<Device::CopyRun> PayloadCopies(const std::byte* memory, std::span<const CodePiece> pieces,
                                           bool packed, bool referenced, std::byte* at);

}  // namespace jaxccomp
