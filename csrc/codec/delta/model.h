// What one block says of its changes, by classes of the reference's exponent: how likely a value has
// changed, and by how much.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/delta/format.h"

namespace jaxccomp::delta {

// A probability of 2^(-rate / 3); kNever: no value has changed.
inline constexpr int kNever = 63;
inline constexpr int kLeastRate = 1;

// Lengths of steps: 1, 2, 3, 4-5, 6-7, 8-11, ...: the highest bit and the one below, the rest follow raw.
inline constexpr int kLengths = 63;
struct LengthCode {
  int symbol;
  int raw_bits;
};
LengthCode CodeOfLength(uint32_t length);
// The least length of a symbol.
uint32_t LeastLength(int symbol);
int RawBits(int symbol);

inline constexpr int kLengthScaleBits = 11;
// spread[c]: lengths as of a geometric distribution with a mean of 2^(spread / 2), or listed.
inline constexpr int kListed = 15;
inline constexpr int kSpreads = 48;

struct ClassCounts {
  int64_t values = 0;     // about
  int64_t changes = 0;
  std::array<uint32_t, kLengths> lengths{};
};

struct Model {
  uint8_t base = 0;
  std::array<uint8_t, kClasses> rate{};
  std::array<uint8_t, kClasses> spread{};
  std::array<std::array<uint8_t, kLengths>, kClasses> listed{};    // where spread is kListed
  std::array<std::array<uint16_t, kLengths>, kClasses> length{};   // frequencies, of 2^kLengthScaleBits
  uint8_t away = 0;          // of 16

  // The one that fits.
  static Model Of(int base, std::span<const ClassCounts, kClasses> counts, int64_t away_count);
  // As they travel. Write returns the end; Read the bytes taken, or -1.
  std::byte* Write(std::byte* at) const;
  int64_t Read(std::span<const std::byte> from);

  // Of a change: of 2^32.
  static uint32_t Probability(int rate);
  // -ln(1 - p) * 2^30.
  static uint32_t Hazard(int rate);
};
inline constexpr int64_t kMostModelBytes = 2 + kClasses * (2 + 1 + 1 + kLengths);

}  // namespace jaxccomp::delta
