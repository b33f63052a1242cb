// Payloads as lists of pieces (scatter-gather lists): their size, and copies between lists and contiguous memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "common/stream_copy.h"
#include "transport/transport.h"

namespace jaxccomp {

inline int64_t TotalBytes(std::span<const Piece> pieces) {
  int64_t total_bytes = 0;
  for (const Piece& p : pieces) total_bytes += p.bytes;
  return total_bytes;
}

// `streams`: with non-temporal stores.
inline void CopyBytes(void* to, const void* from, int64_t bytes, bool streams = false) {
  // An empty piece may have a null address, which memcpy does not allow.
  if (bytes <= 0) return;
  if (streams) {
    StreamCopy(to, from, bytes);
  } else {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

inline void Gather(std::span<const Piece> from, std::byte* to) {
  for (const Piece& p : from) {
    CopyBytes(to, p.data, p.bytes);
    to += p.bytes;
  }
}

// `from` holds TotalBytes(to) bytes.
inline void Scatter(const std::byte* from, std::span<const Piece> to) {
  for (const Piece& p : to) {
    CopyBytes(p.data, from, p.bytes);
    from += p.bytes;
  }
}

// Both lists have the same total size; the sizes of their pieces may differ.
inline void CopyPieces(std::span<const Piece> from, std::span<const Piece> to,
                       bool streams = false) {
  size_t source = 0;
  int64_t taken_bytes = 0;  // of from[source]
  for (const Piece& p : to) {
    for (int64_t filled_bytes = 0; filled_bytes < p.bytes && source < from.size();) {
      const int64_t bytes =
          std::min(p.bytes - filled_bytes, from[source].bytes - taken_bytes);
      CopyBytes(static_cast<std::byte*>(p.data) + filled_bytes,
                static_cast<const std::byte*>(from[source].data) + taken_bytes, bytes,
                streams);
      filled_bytes += bytes;
      taken_bytes += bytes;
      if (taken_bytes == from[source].bytes) {
        ++source;
        taken_bytes = 0;
      }
    }
  }
}

// Returns a Transport::Reader of the payload at `whole`, in memory of this process. The reader keeps `memory` alive.
inline Transport::Reader ReaderOf(std::shared_ptr<const void> memory, Piece whole) {
  return [memory = std::move(memory), whole](std::span<const Piece> into, bool streams) {
    CopyPieces({&whole, 1}, into, streams);
    return true;
  };
}

}  // namespace jaxccomp
