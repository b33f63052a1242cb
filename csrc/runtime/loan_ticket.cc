#include "runtime/loan_ticket.h"

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
  int32_t lender = 0;
  int32_t memory = 0;
  uint32_t packed = 0;
  uint32_t referenced = 0;
  int64_t payload_bytes = 0;
};
static_assert(std::is_trivially_copyable_v<Packed> && sizeof(Packed) == 40);
static_assert(std::is_trivially_copyable_v<LoanPiece> && sizeof(LoanPiece) == 24);

constexpr size_t kChecked = offsetof(Packed, number);

Status NoTicket() { return {Code::kDataLoss, "bytes arrived that are no ticket of a loan"}; }

}  // namespace

std::string WriteTicket(const LoanTicket& ticket) {
  Packed head;
  head.number = ticket.number;
  head.lender = ticket.lender;
  head.memory = ticket.memory;
  head.packed = ticket.packed;
  head.referenced = ticket.referenced;
  head.payload_bytes = ticket.payload_bytes;
  std::string bytes(sizeof(head) + ticket.pieces.size() * sizeof(LoanPiece), '\0');
  std::memcpy(bytes.data(), &head, sizeof(head));
  if (!ticket.pieces.empty()) {
    std::memcpy(bytes.data() + sizeof(head), ticket.pieces.data(),
                ticket.pieces.size() * sizeof(LoanPiece));
  }
  head.checksum = Crc32c(std::as_bytes(std::span(bytes)).subspan(kChecked));
  std::memcpy(bytes.data(), &head, sizeof(head));
  return bytes;
}

Result<LoanTicket> ReadTicket(std::span<const std::byte> bytes) {
  Packed head;
  if (bytes.size() < sizeof(head)) return NoTicket();
  std::memcpy(&head, bytes.data(), sizeof(head));
  const std::span<const std::byte> rest = bytes.subspan(sizeof(head));
  const size_t count = rest.size() / sizeof(LoanPiece);
  if (head.magic != kMagic || head.checksum != Crc32c(bytes.subspan(kChecked)) || head.packed > 1 ||
      head.referenced > 1 || rest.size() % sizeof(LoanPiece) != 0 || count == 0 ||
      count > LoanTicket::kMostPieces || (head.packed == 1 && count != 1)) {
    return NoTicket();
  }
  LoanTicket ticket{head.number,      head.lender,          head.memory, head.packed == 1,
                    head.referenced == 1, head.payload_bytes, {}};
  ticket.pieces.resize(count);
  std::memcpy(ticket.pieces.data(), rest.data(), rest.size());
  for (const LoanPiece& piece : ticket.pieces) {
    const bool fits = piece.offset >= 0 && piece.bytes >= 0 && piece.offset <= kMostBytes &&
                      piece.bytes <= kMostBytes;
    if (!fits) return NoTicket();
  }
  if (head.payload_bytes != PayloadBytes(ticket.pieces, ticket.packed, ticket.referenced)) {
    return NoTicket();
  }
  return ticket;
}

int64_t PayloadBytes(std::span<const LoanPiece> pieces, bool packed, bool referenced) {
  int64_t bytes = 0;
  for (const LoanPiece& piece : pieces) {
    bytes += piece.bytes;
    if (!packed) bytes += static_cast<int64_t>(sizeof(int64_t)) + (referenced ? 4 : 0);
  }
  return bytes;
}

}  // namespace jaxccomp
