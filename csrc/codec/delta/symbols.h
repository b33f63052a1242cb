// Symbols of step lengths: 1, 2, 3, 4-5, 6-7, 8-11, ...: the highest bit and the next one. Lower bits are coded
// verbatim.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace jaxccomp::delta {

inline constexpr int kSymbols = 63;

inline int SymbolOf(uint32_t length) {
  const int high = std::bit_width(length) - 1;
  // No branch for length 1: it has no next bit, and (high - 1) & 31 = 31 shifts in a 0.
  return std::max(2 * high - 1 + static_cast<int>(length >> ((high - 1) & 31) & 1), 0);
}

// For each symbol: the least length and the number of low bits.
struct SymbolTable {
  std::array<uint32_t, kSymbols> minimum{};
  std::array<uint8_t, kSymbols> raw_bits{};
};
inline constexpr SymbolTable kOfSymbol = [] {
  SymbolTable made;
  made.minimum[0] = 1;
  for (int symbol = 1; symbol < kSymbols; ++symbol) {
    const int high = (symbol + 1) / 2;
    made.minimum[symbol] = (2u | (symbol % 2 == 0)) << (high - 1);
    made.raw_bits[symbol] = static_cast<uint8_t>(high - 1);
  }
  return made;
}();

}  // namespace jaxccomp::delta
