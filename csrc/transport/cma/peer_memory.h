// Reads memory of another process of this host by Linux's cross memory attach (process_vm_readv): the receiver makes
// the only copy, straight from the sender's payload.
//
// Addresses come from the other process. They are only read, and only in that process. A guard (guards.h) shows
// whether the data was valid. If the process number belongs to another process by now, that process has no such
// guard.
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

// Where a payload lies in its sender's memory.
struct LocatedPayload {
  struct Part {   // sent as it is
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

  // Whether the process holds this guard, so it is the one that announced it and its memory can be read. Any thread
  // may call this, and Read.
  bool Has(const GuardMark& guard) const;
  // Copies the payload into pieces of the same total size. False: the read failed, `into` is undefined, and later
  // reads fail.
  bool Read(const LocatedPayload& from, std::span<const Piece> into);
  bool usable() const { return usable_; }

 private:
  bool Copy(const LocatedPayload& from, std::span<const Piece> into) const;

  const pid_t pid_;
  std::atomic<bool> usable_ = true;
};

}  // namespace jaxccomp
