// What travels in place of a payload that stays in its sender's memory: where it lies in the shared memory
// of the sender's device. Not trusted when it comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "codec/code_pieces.h"
#include "common/status.h"
#include "transport/transport.h"

namespace jaxccomp {

struct IpcDescriptor {
  // What comes with every header: more pieces travel as a payload.
  static constexpr size_t kMostPieces = 256;

  uint64_t number = 0;         // of the export, by exporter
  int32_t exporter = -1;       // its process
  int32_t memory = 0;          // which of its shared memories
  bool packed = false;         // raw values; else codes
  bool referenced = false;     // pieces have checksums
  int64_t payload_bytes = 0;   // that it stands for
  std::vector<CodePiece> pieces;
};
static_assert(IpcDescriptor::kMostPieces * sizeof(CodePiece) + 64 <= kAlongBytes);

std::string WriteDescriptor(const IpcDescriptor& descriptor);
// kDataLoss for what is no descriptor. That its pieces lie in memory that is there is not checked here.
Result<IpcDescriptor> ReadDescriptor(std::span<const std::byte> bytes);

// The bytes of a payload of these pieces (code_block.h).
int64_t PayloadBytes(std::span<const CodePiece> pieces, bool packed, bool referenced);

}  // namespace jaxccomp
