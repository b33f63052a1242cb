// Memory for kernels that run on the host, with guards that detect writes outside it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace jaxccomp::testing {

// `bytes` of memory at an address `offset` past a multiple of 64, with guards on both sides.
class Guarded {
 public:
  explicit Guarded(int64_t bytes, int64_t offset = 0)
      : bytes_(bytes), all_(bytes + 2 * kGuardBytes + 128, kGuard) {
    const auto base = reinterpret_cast<uintptr_t>(all_.data());
    at_ = all_.data() + ((base + kGuardBytes + 63) / 64 * 64 - base) + offset;
  }
  std::byte* data() { return at_; }
  std::vector<std::byte> Values() const { return {at_, at_ + bytes_}; }
  bool Intact() const {
    const std::byte* const end = all_.data() + all_.size();
    const auto guard = [](std::byte b) { return b == kGuard; };
    return std::all_of(all_.data(), const_cast<const std::byte*>(at_), guard) &&
           std::all_of(const_cast<const std::byte*>(at_) + bytes_, end, guard);
  }
  void Fill(std::span<const std::byte> from) { std::copy(from.begin(), from.end(), at_); }

 private:
  static constexpr std::byte kGuard{0x5a};
  static constexpr int64_t kGuardBytes = 72;

  int64_t bytes_;
  std::vector<std::byte> all_;
  std::byte* at_;
};

}  // namespace jaxccomp::testing
