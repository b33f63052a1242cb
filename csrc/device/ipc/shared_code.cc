#include "device/ipc/shared_code.h"

#include <cstring>

namespace jaxccomp {

static_assert(sizeof(FoundSize::code_bytes) == kCodeLengthBytes);
static_assert(offsetof(FoundSize, ref_checksum) == kCodeLengthBytes);

int64_t HeadBytes(bool packed, bool referenced) {
  if (packed) return 0;
  return kCodeLengthBytes + (referenced ? kReferenceChecksumBytes : 0);
}

std::vector<CodePiece> PieceInOne(bool packed, int64_t bytes) {
  static_assert(kPieceAlign >= kCodeLengthBytes + kReferenceChecksumBytes);
  return {{packed ? 0 : kPieceAlign, bytes}};
}

void PlacePayload(SharedCode* code) {
  code->payload = code->memory + code->pieces[0].offset - HeadBytes(code->packed, code->referenced);
}

Device::CopyRun WriteHead(SharedCode* code) {
  const CodePiece& piece = code->pieces[0];
  code->sizes()[0] = {piece.bytes + (code->referenced ? kReferenceChecksumBytes : 0),
                      piece.ref_checksum, 0};
  return {code->payload, code->found.get(), HeadBytes(code->packed, code->referenced)};
}

Status ReadHead(SharedCode* code, int64_t payload_bytes) {
  const FoundSize& head = code->sizes()[0];
  if (head.code_bytes != payload_bytes - kCodeLengthBytes) {
    return {Code::kDataLoss, "an encoded message does not have the length that it should"};
  }
  code->pieces[0].bytes = payload_bytes - HeadBytes(code->packed, code->referenced);
  if (code->referenced) code->pieces[0].ref_checksum = head.ref_checksum;
  return Status::Ok();
}

std::vector<Device::CopyRun> PayloadCopies(const std::byte* memory, std::span<const CodePiece> pieces,
                                           bool packed, bool referenced, std::byte* at) {
  std::vector<Device::CopyRun> runs;
  for (const CodePiece& piece : pieces) {
    if (!packed) {
      const int64_t code_bytes = piece.bytes + (referenced ? kReferenceChecksumBytes : 0);
      std::memcpy(at, &code_bytes, sizeof(code_bytes));
      at += sizeof(code_bytes);
      if (referenced) {
        std::memcpy(at, &piece.ref_checksum, sizeof(piece.ref_checksum));
        at += sizeof(piece.ref_checksum);
      }
    }
    if (piece.bytes > 0) runs.push_back({at, memory + piece.offset, piece.bytes});
    at += piece.bytes;
  }
  return runs;
}

}  // namespace jaxccomp
