// Reads memory of another process of this host by Linux's cross memory attach (process_vm_readv): the receiver makes
// the only copy, straight from the sender's payload.
//
// The addresses come from the other process. This process only reads there, and only in the other process. A guard
// (guards.h) shows whether the bytes were valid. If the pid belongs to another process by now, that process does not
// hold the guard.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "transport/cma/guards.h"
#include "transport/transport.h"

namespace jaxccomp {

// Remote buffer descriptor: the addresses of a payload in the sender's memory, and its guard.
struct LocatedPayload {
  struct Part {   // sent as raw bytes
    uint64_t address = 0;
    int64_t bytes = 0;
  };
  static constexpr size_t kMaxParts = 256;

  GuardMark guard;
  std::vector<Part> parts;

  // Leaves out empty pieces. None if there are more than kMaxParts.
  static std::optional<LocatedPayload> Of(std::span<const Piece> pieces);
  std::vector<std::byte> Packed() const;
  // None: `packed` does not describe a payload of `payload_bytes`.
  static std::optional<LocatedPayload> Unpack(std::span<const std::byte> packed, int64_t payload_bytes);
};

class PeerMemory {
 public:
  explicit PeerMemory(pid_t pid) : pid_(pid) {}

  // Whether the process holds this guard. Then it is the process that announced the guard, and its memory is readable.
  // Any thread may call Has and Read.
  bool Has(const GuardMark& guard) const;
  // Copies the payload into pieces of the same total size. False: the read failed, and `into` is undefined.
  // Later reads fail too, unless the sender has revoked the guard.
  bool Read(const LocatedPayload& from, std::span<const Piece> into);
  bool usable() const { return usable_; }

 private:
  // The guard's word; none if it cannot be read.
  std::optional<uint64_t> WordOf(const GuardMark& guard) const;
  bool Copy(const LocatedPayload& from, std::span<const Piece> into) const;

  const pid_t pid_;
  std::atomic<bool> usable_ = true;
};

}  // namespace jaxccomp
