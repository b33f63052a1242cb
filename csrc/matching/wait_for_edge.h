// The wait-for edge from a waiting operation to the rank that it probes (MessageType::kProbe). Two opposite edges show
// whether two ranks wait for each other for ever (engine/deadlock_detector.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

namespace jaxccomp {

// Sent as it is, like Header.
struct WaitForEdge {
  uint64_t sent = 0;          // sequence number of the message to the probed rank that is not taken; 0: none
  int64_t sent_tag = 0;
  uint64_t receives = 0;      // 1: the operation waits for a message of the probed rank only
  uint64_t arrived = 0;       // how many messages of the probed rank have come
  int64_t receive_tag = 0;    // maybe OpSpec::kAnyTag
  uint64_t alone = 0;         // 1: no other operation is open here, and one thread calls all operations

  bool Waits() const { return sent != 0 || receives != 0; }
  std::string ToBytes() const { return {reinterpret_cast<const char*>(this), sizeof(*this)}; }
  static std::optional<WaitForEdge> FromBytes(std::span<const std::byte> bytes) {
    WaitForEdge edge;
    if (bytes.size() != sizeof(edge)) return std::nullopt;
    std::memcpy(&edge, bytes.data(), sizeof(edge));
    return edge;
  }
};
static_assert(sizeof(WaitForEdge) == 48);

}  // namespace jaxccomp
