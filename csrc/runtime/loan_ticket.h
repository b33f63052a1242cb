// What travels in place of a payload that is lent: where it lies in the lender's shared memory. Not
// trusted when it comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "transport/transport.h"

namespace jaxccomp {

// The code of one part of a code block, or a packed message as a whole.
struct LoanPiece {
  int64_t offset = 0;          // from where the memory begins
  int64_t bytes = 0;
  uint32_t ref_checksum = 0;   // of its reference, if it has one
  uint32_t zero = 0;
};

struct LoanTicket {
  // What comes with every header: more pieces travel as a payload.
  static constexpr size_t kMostPieces = 256;

  uint64_t number = 0;         // of the loan, by lender
  int32_t lender = -1;         // its process
  int32_t memory = 0;          // which of its shared memories
  bool packed = false;         // raw values; else codes
  bool referenced = false;     // pieces have checksums
  int64_t payload_bytes = 0;   // that it stands for
  std::vector<LoanPiece> pieces;
};
static_assert(LoanTicket::kMostPieces * sizeof(LoanPiece) + 64 <= kAlongBytes);

std::string WriteTicket(const LoanTicket& ticket);
// kDataLoss for what is no ticket. That its pieces lie in memory that is there is not checked here.
Result<LoanTicket> ReadTicket(std::span<const std::byte> bytes);

// The bytes of a payload of these pieces (code_block.h).
int64_t PayloadBytes(std::span<const LoanPiece> pieces, bool packed, bool referenced);

}  // namespace jaxccomp
