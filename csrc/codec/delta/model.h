// What one block says of its changes: by classes of the reference's exponent, how likely a value has changed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/delta/format.h"

namespace jaxccomp::delta {

using ClassCounts = std::array<uint32_t, kClasses>;

// A probability of 2^(-rate / 3), of 0.98 for a rate of 0; kNever: no value has changed.
inline constexpr int kNever = 63;
inline constexpr int kLeastRate = 0;

struct Model {
  uint8_t base = 0;
  std::array<uint8_t, kClasses> rate{};

  // The one that fits. `values`: about how many each class has.
  static Model Of(int base, const ClassCounts& values, const ClassCounts& changes);
  // As it travels. Write returns the end; Read the bytes taken, or -1.
  std::byte* Write(std::byte* at) const;
  int64_t Read(std::span<const std::byte> from);

  // Of a change: of 2^32.
  static uint32_t Probability(int rate);
  // -ln(1 - p) * 2^30.
  static uint32_t Hazard(int rate);
};
inline constexpr int64_t kMostModelBytes = 1 + (3 * kClasses + 1) / 2;

}  // namespace jaxccomp::delta
