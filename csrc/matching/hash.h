// Hashes that are the same on every machine: messages carry them.
#pragma once

#include <cstdint>
#include <string_view>

namespace jaxccomp {

// One round of SplitMix64 (Steele et al., OOPSLA 2014) over the running hash and a value.
inline constexpr uint64_t Mix(uint64_t hash, uint64_t value) {
  uint64_t z = hash + 0x9e3779b97f4a7c15ull + value;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

inline constexpr uint64_t Mix(uint64_t hash, std::string_view text) {
  hash = Mix(hash, text.size());
  for (char c : text) hash = Mix(hash, static_cast<uint64_t>(static_cast<unsigned char>(c)));
  return hash;
}

}  // namespace jaxccomp
