#include "transport/cma/peer_memory.h"

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstring>
#include <limits>

namespace jaxccomp {
namespace {

// Maximum number of iovecs of each side in one call; Linux allows 1024 (UIO_MAXIOV).
constexpr size_t kMaxVectors = 256;

void* AddressOf(const Piece& piece) { return piece.data; }
void* AddressOf(const LocatedPayload::Part& part) { return reinterpret_cast<void*>(part.address); }

// A cursor in a list of memory parts: the parts that are not copied yet.
template <typename Part>
struct Rest {
  std::span<const Part> parts;
  int64_t offset = 0;   // in the first part

  // Fills in the iovecs of the first parts, and returns their number.
  size_t Vectors(std::array<iovec, kMaxVectors>* vectors) const {
    size_t count = 0;
    int64_t begin = offset;
    for (const Part& part : parts) {
      if (count == kMaxVectors) break;
      (*vectors)[count++] = {static_cast<std::byte*>(AddressOf(part)) + begin,
                             static_cast<size_t>(part.bytes - begin)};
      begin = 0;
    }
    return count;
  }
  void Advance(int64_t bytes) {
    offset += bytes;
    while (!parts.empty() && offset >= parts.front().bytes) {
      offset -= parts.front().bytes;
      parts = parts.subspan(1);
    }
  }
};

}  // namespace

// --- Addresses of a payload ---------------------------------------------------------------------

std::optional<LocatedPayload> LocatedPayload::Of(std::span<const Piece> pieces) {
  LocatedPayload located;
  for (const Piece& piece : pieces) {
    if (piece.bytes == 0) continue;
    if (located.parts.size() == kMaxParts) return std::nullopt;
    located.parts.push_back({reinterpret_cast<uint64_t>(piece.data), piece.bytes});
  }
  return located;
}

std::vector<std::byte> LocatedPayload::Packed() const {
  std::vector<std::byte> packed(sizeof(guard) + parts.size() * sizeof(Part));
  std::memcpy(packed.data(), &guard, sizeof(guard));
  std::memcpy(packed.data() + sizeof(guard), parts.data(), parts.size() * sizeof(Part));
  return packed;
}

std::optional<LocatedPayload> LocatedPayload::Unpack(std::span<const std::byte> packed,
                                                     int64_t payload_bytes) {
  LocatedPayload located;
  if (packed.size() < sizeof(GuardMark)) return std::nullopt;
  std::memcpy(&located.guard, packed.data(), sizeof(GuardMark));
  packed = packed.subspan(sizeof(GuardMark));
  const size_t count = packed.size() / sizeof(Part);
  if (located.guard.value == 0 || packed.size() % sizeof(Part) != 0 || count > kMaxParts) {
    return std::nullopt;
  }
  located.parts.resize(count);
  if (count > 0) std::memcpy(located.parts.data(), packed.data(), packed.size());
  int64_t open_bytes = payload_bytes;
  for (const Part& part : located.parts) {
    const uint64_t room = std::numeric_limits<uint64_t>::max() - part.address;
    if (part.bytes <= 0 || part.bytes > open_bytes || static_cast<uint64_t>(part.bytes) > room) {
      return std::nullopt;
    }
    open_bytes -= part.bytes;
  }
  if (open_bytes != 0) return std::nullopt;
  return located;
}

// --- Reading ------------------------------------------------------------------------------------

bool PeerMemory::Has(const GuardMark& guard) const { return guard.value != 0 && WordOf(guard) == guard.value; }

std::optional<uint64_t> PeerMemory::WordOf(const GuardMark& guard) const {
  uint64_t found = 0;
  const iovec here{&found, sizeof(found)};
  const iovec there{reinterpret_cast<void*>(guard.address), sizeof(found)};
  if (process_vm_readv(pid_, &here, 1, &there, 1, 0) != static_cast<ssize_t>(sizeof(found))) return std::nullopt;
  return found;
}

bool PeerMemory::Read(const LocatedPayload& from, std::span<const Piece> into) {
  if (!usable_) return false;
  const bool copied = Copy(from, into);
  // Read the guard after the payload, so that it is valid for the whole copy.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::optional<uint64_t> word = WordOf(from.guard);
  if (copied && from.guard.value != 0 && word == from.guard.value) return true;
  // A revoked guard is 0: the sender has cancelled this payload only.
  if (word != 0) usable_ = false;
  return false;
}

bool PeerMemory::Copy(const LocatedPayload& from, std::span<const Piece> into) const {
  std::array<iovec, kMaxVectors> here, there;
  Rest<LocatedPayload::Part> source{from.parts};
  Rest<Piece> place{into};
  place.Advance(0);   // past empty pieces
  while (!place.parts.empty()) {
    const size_t here_count = place.Vectors(&here), there_count = source.Vectors(&there);
    // The kernel copies the smaller size of both sides. At unreadable memory it stops early, and the next call fails.
    const ssize_t read_bytes =
        process_vm_readv(pid_, here.data(), here_count, there.data(), there_count, 0);
    if (read_bytes <= 0) return false;
    source.Advance(read_bytes);
    place.Advance(read_bytes);
  }
  return true;
}

}  // namespace jaxccomp
