// Memory of another process of this host, read by Linux's cross memory attach (process_vm_readv): one copy, made
// by the receiver, straight from where the sender has a payload.
//
// Addresses come from the other process. They are read in that process alone, and never written to; a
// guard (guards.h) says whether what was read was meant. A number of a process may be another process's by
// now, and that process's memory has no such guard.
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

// A payload as its sender tells where it lies.
struct LocatedPayload {
  struct Part {   // goes over the wire as it is
    uint64_t address = 0;
    int64_t bytes = 0;
  };
  static constexpr size_t kMostParts = 256;

  GuardMark guard;
  std::vector<Part> parts;

  // Empty pieces are left out. None where there are more than kMostParts.
  static std::optional<LocatedPayload> Of(std::span<const Piece> pieces);
  std::vector<std::byte> Packed() const;
  // None: these are not the bytes of a payload of `payload_bytes`.
  static std::optional<LocatedPayload> Unpack(std::span<const std::byte> packed, int64_t payload_bytes);
};

class PeerMemory {
 public:
  explicit PeerMemory(pid_t pid) : pid_(pid) {}

  // Whether the process has this guard: that is, whether it is the one that has told of it, and whether this
  // one may read its memory. By any thread, as Read.
  bool Has(const GuardMark& guard) const;
  // Copies the payload to `into`, which has its size. False: it could not be read, and what `into` holds
  // means nothing. It will then not be usable any more.
  bool Read(const LocatedPayload& from, std::span<const Piece> into);
  bool usable() const { return usable_; }

 private:
  bool Copy(const LocatedPayload& from, std::span<const Piece> into) const;

  const pid_t pid_;
  std::atomic<bool> usable_ = true;
};

}  // namespace jaxccomp
