// Bytes at a chosen offset from an aligned address, with guards around them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "check.h"
#include "lossy_codecs.h"

namespace jaxccomp::testing {

// Guard bytes before and after the values must not change.
inline constexpr std::byte kGuard{0xa5};
inline constexpr size_t kGuardBytes = 64;

// Bytes at `offset` from an address with the strictest alignment.
class Placed {
 public:
  Placed(const Bytes& bytes, size_t offset)
      : offset_(offset), size_(bytes.size()), memory_(bytes.size() + 2 * kGuardBytes + 32, kGuard) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data() + kGuardBytes);
    offset_ += kGuardBytes + (16 - address % 16) % 16;
    if (size_ > 0) std::memcpy(data(), bytes.data(), size_);
  }
  std::byte* data() { return memory_.data() + offset_; }
  Bytes Take() {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if ((i < offset_ || i >= offset_ + size_) && !CHECK(memory_[i] == kGuard)) break;
    }
    return Bytes(data(), data() + size_);
  }

 private:
  size_t offset_;
  size_t size_;
  Bytes memory_;
};

}  // namespace jaxccomp::testing
