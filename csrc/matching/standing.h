// How an operation that waits stands towards the rank that it asks (MessageType::kProbe). From two of
// these it follows whether two ranks wait for each other for ever (engine/deadlock_detector.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

namespace jaxccomp {

// Goes over the wire as it is, like Header.
struct Standing {
  uint64_t sent = 0;          // the number of a message to the one asked that is not taken; 0: none
  int64_t sent_tag = 0;
  uint64_t receives = 0;      // 1: a receive waits for a message of the one asked, and of nobody else
  uint64_t arrived = 0;       // how many of its messages have come, under
  int64_t receive_tag = 0;    // that tag or any other
  uint64_t alone = 0;         // 1: nothing else is under way here, and one thread calls all there is

  bool Waits() const { return sent != 0 || receives != 0; }
  std::string ToBytes() const { return {reinterpret_cast<const char*>(this), sizeof(*this)}; }
  static std::optional<Standing> FromBytes(std::span<const std::byte> bytes) {
    Standing standing;
    if (bytes.size() != sizeof(standing)) return std::nullopt;
    std::memcpy(&standing, bytes.data(), sizeof(standing));
    return standing;
  }
};
static_assert(sizeof(Standing) == 48);

}  // namespace jaxccomp
