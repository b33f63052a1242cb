// The model of one block: the probability of a change, by class of the reference's exponent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/delta/format.h"

namespace jaxccomp::delta {

using ClassCounts = std::array<uint32_t, kClasses>;

// Rate r: probability 2^(-r / 3); rate 0: 0.98; kNever: no value has changed.
inline constexpr int kNever = 63;
inline constexpr int kMinRate = 0;

struct Model {
  uint8_t base = 0;
  std::array<uint8_t, kClasses> rate{};

  // Fits the rates. `values`: the estimated number of values of each class.
  static Model Of(int base, const ClassCounts& values, const ClassCounts& changes);
  // The wire format. Write returns the end; Read the bytes taken, or -1.
  std::byte* Write(std::byte* at) const;
  int64_t Read(std::span<const std::byte> from);

  // The probability of a change, times 2^32.
  static uint32_t Probability(int rate);
  // -ln(1 - p) * 2^30.
  static uint32_t Hazard(int rate);
};
inline constexpr int64_t kMaxModelBytes = 1 + (3 * kClasses + 1) / 2;

}  // namespace jaxccomp::delta
