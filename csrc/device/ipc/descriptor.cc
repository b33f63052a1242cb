#include "device/ipc/descriptor.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include "common/crc32c.h"

namespace jaxccomp {
namespace {

constexpr uint32_t kMagic = 0x314e4c4a;   // "JLN1"
constexpr int64_t kMostBytes = int64_t{1} << 48;

struct Packed {
  uint32_t magic = kMagic;
  uint32_t checksum = 0;   // of all behind it
  uint64_t number = 0;
  int32_t exporter = 0;
  int32_t memory = 0;
  uint32_t packed = 0;
  uint32_t referenced = 0;
  int64_t payload_bytes = 0;
};
static_assert(std::is_trivially_copyable_v<Packed> && sizeof(Packed) == 40);
static_assert(std::is_trivially_copyable_v<CodePiece> && sizeof(CodePiece) == 24);

constexpr size_t kChecked = offsetof(Packed, number);

Status NoDescriptor() { return {Code::kDataLoss, "bytes arrived that are no IPC descriptor"}; }

}  // namespace

std::string WriteDescriptor(const IpcDescriptor& descriptor) {
  Packed head;
  head.number = descriptor.number;
  head.exporter = descriptor.exporter;
  head.memory = descriptor.memory;
  head.packed = descriptor.packed;
  head.referenced = descriptor.referenced;
  head.payload_bytes = descriptor.payload_bytes;
  std::string bytes(sizeof(head) + descriptor.pieces.size() * sizeof(CodePiece), '\0');
  std::memcpy(bytes.data(), &head, sizeof(head));
  if (!descriptor.pieces.empty()) {
    std::memcpy(bytes.data() + sizeof(head), descriptor.pieces.data(),
                descriptor.pieces.size() * sizeof(CodePiece));
  }
  head.checksum = Crc32c(std::as_bytes(std::span(bytes)).subspan(kChecked));
  std::memcpy(bytes.data(), &head, sizeof(head));
  return bytes;
}

Result<IpcDescriptor> ReadDescriptor(std::span<const std::byte> bytes) {
  Packed head;
  if (bytes.size() < sizeof(head)) return NoDescriptor();
  std::memcpy(&head, bytes.data(), sizeof(head));
  const std::span<const std::byte> rest = bytes.subspan(sizeof(head));
  const size_t count = rest.size() / sizeof(CodePiece);
  if (head.magic != kMagic || head.checksum != Crc32c(bytes.subspan(kChecked)) || head.packed > 1 ||
      head.referenced > 1 || rest.size() % sizeof(CodePiece) != 0 || count == 0 ||
      count > IpcDescriptor::kMostPieces || (head.packed == 1 && count != 1)) {
    return NoDescriptor();
  }
  IpcDescriptor descriptor{head.number,      head.exporter,          head.memory, head.packed == 1,
                    head.referenced == 1, head.payload_bytes, {}};
  descriptor.pieces.resize(count);
  std::memcpy(descriptor.pieces.data(), rest.data(), rest.size());
  for (const CodePiece& piece : descriptor.pieces) {
    const bool fits = piece.offset >= 0 && piece.bytes >= 0 && piece.offset <= kMostBytes &&
                      piece.bytes <= kMostBytes;
    if (!fits) return NoDescriptor();
  }
  if (head.payload_bytes != PayloadBytes(descriptor.pieces, descriptor.packed, descriptor.referenced)) {
    return NoDescriptor();
  }
  return descriptor;
}

int64_t PayloadBytes(std::span<const CodePiece> pieces, bool packed, bool referenced) {
  int64_t bytes = 0;
  for (const CodePiece& piece : pieces) {
    bytes += piece.bytes;
    if (!packed) bytes += static_cast<int64_t>(sizeof(int64_t)) + (referenced ? 4 : 0);
  }
  return bytes;
}

}  // namespace jaxccomp
