// The portable loops. Tables of instruction sets use them unless they have faster ones.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "codec/delta/kernels.h"
#include "codec/delta/symbols.h"

namespace jaxccomp::delta {
namespace {

template <typename Word>
int64_t MapOf(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map) {
  int64_t changes = 0;
  for (int64_t first = 0; first < count; first += kGranule) {
    const int n = static_cast<int>(std::min<int64_t>(kGranule, count - first));
    uint64_t bits = 0;
    for (int i = 0; i < n; ++i) {
      Word a, b;
      std::memcpy(&a, src + (first + i) * sizeof(Word), sizeof(Word));
      std::memcpy(&b, ref + (first + i) * sizeof(Word), sizeof(Word));
      bits |= static_cast<uint64_t>(a != b) << i;
    }
    map[first / kGranule] = bits;
    changes += std::popcount(bits);
  }
  return changes;
}

template <typename F>
void ClassesOf(const std::byte* ref, int64_t count, int base, uint8_t* classes) {
  for (int64_t i = 0; i < count; ++i) {
    const int below = base - F::ExponentOf(F::Load(ref + i * sizeof(typename F::Word)));
    classes[i] = static_cast<uint8_t>(std::clamp(below, 0, kClasses - 1));
  }
}

template <typename Each>
void ForEachBit(const uint64_t* bits, int64_t first, int64_t count, Each each) {
  for (; first < count; first += 64) {
    for (uint64_t word = bits[first / 64]; word != 0; word &= word - 1) {
      each(first + std::countr_zero(word));
    }
  }
}

// Appends up to 64 bits to an array of n bits.
[[maybe_unused]] void Append(uint64_t* to, int64_t n, uint64_t bits) {
  if (n % 64 == 0) {
    to[n / 64] = bits;
  } else {
    to[n / 64] |= bits << (n % 64);
    to[n / 64 + 1] = bits >> (64 - n % 64);
  }
}

// Returns the 64 bits that start at bit n.
[[maybe_unused]] uint64_t BitsAt(const uint64_t* bits, int64_t n) {
  const uint64_t low = bits[n / 64] >> (n % 64);
  return n % 64 == 0 ? low : low | bits[n / 64 + 1] << (64 - n % 64);
}

// Computes the steps of the changed values from `first` on, the start of a granule; `n` changes precede `first`.
template <typename F>
void StepsFrom(int64_t first, int64_t n, const std::byte* src, const std::byte* ref,
               const uint64_t* map, int64_t count, const Changes& changes) {
  ForEachBit(map, first, count, [&](int64_t i) {
    const auto at = static_cast<int64_t>(sizeof(typename F::Word)) * i;
    const typename F::Word step = F::Step(F::Load(ref + at), F::Load(src + at));
    const bool away = (step & F::kSign) == 0;
    changes.lengths[n] = away ? step : static_cast<typename F::Word>(-step);
    if (n % 64 == 0) changes.away[n / 64] = 0;
    changes.away[n / 64] |= uint64_t{away} << (n % 64);
    ++n;
  });
}

template <typename F>
void AdvanceFrom(int64_t first, int64_t n, std::byte* values, const uint64_t* map, int64_t count,
                 const Changes& changes) {
  ForEachBit(map, first, count, [&](int64_t i) {
    const auto length = static_cast<typename F::Word>(changes.lengths[n]);
    const bool away = changes.away[n / 64] >> (n % 64) & 1;
    std::byte* const at = values + static_cast<int64_t>(sizeof(length)) * i;
    F::Store(F::Advance(F::Load(at), away ? length : static_cast<typename F::Word>(-length)), at);
    ++n;
  });
}

template <typename F>
void Steps(const std::byte* src, const std::byte* ref, const uint64_t* map, int64_t count,
           const Changes& changes) {
  StepsFrom<F>(0, 0, src, ref, map, count, changes);
}

template <typename F>
void Advance(std::byte* values, const uint64_t* map, int64_t count, const Changes& changes) {
  AdvanceFrom<F>(0, 0, values, map, count, changes);
}

void SumsOf(const uint8_t* classes, int64_t count, const uint16_t* weights, uint32_t* sums) {
  for (int64_t first = 0; first < count; first += kGranule) {
    const int64_t end = std::min(first + kGranule, count);
    uint32_t sum = 0;
    for (int64_t i = first; i < end; ++i) sum += weights[classes[i]];
    sums[first / kGranule] = sum;
  }
}

[[maybe_unused]] void CountOf(const uint8_t* classes, int64_t count, uint32_t* counts) {
  // Four tables in turn: an increment waits for the previous increment of the same counter.
  uint32_t turns[4][kClasses] = {};
  for (int64_t i = 0; i < count; ++i) ++turns[i % 4][classes[i]];
  for (int c = 0; c < kClasses; ++c) {
    counts[c] = turns[0][c] + turns[1][c] + turns[2][c] + turns[3][c];
  }
}

[[maybe_unused]] void SymbolsOf(const uint32_t* lengths, int64_t count, uint8_t* symbols) {
  for (int64_t i = 0; i < count; ++i) symbols[i] = static_cast<uint8_t>(SymbolOf(lengths[i]));
}

[[maybe_unused]] void AboveOf(const uint8_t* numbers, int64_t count, int than, uint64_t* bits) {
  for (int64_t first = 0; first < count; first += 64) {
    const int n = static_cast<int>(std::min<int64_t>(64, count - first));
    uint64_t word = 0;
    for (int i = 0; i < n; ++i) word |= static_cast<uint64_t>(numbers[first + i] > than) << i;
    bits[first / 64] = word;
  }
}

[[maybe_unused]] int64_t KeepOf(const uint64_t* bits, const uint8_t* from, int64_t count, uint8_t* to) {
  int64_t n = 0;
  for (int64_t first = 0; first < count; first += 64) {
    uint64_t word = bits[first / 64];
    const int64_t end = std::min(first + 64, count);
    for (int64_t i = first; i < end; ++i, word >>= 1) {
      to[n] = from[i];
      n += word & 1;
    }
  }
  return n;
}

[[maybe_unused]] void ClimbOf(const uint64_t* bits, const uint8_t* from, int64_t count, uint8_t* to) {
  for (int64_t first = 0; first < count; first += 64) {
    uint64_t word = bits[first / 64];
    const int64_t end = std::min(first + 64, count);
    for (int64_t i = first; i < end; ++i, word >>= 1) {
      to[i] = static_cast<uint8_t>((*from + 1) & -static_cast<int>(word & 1));
      from += word & 1;
    }
  }
}

[[maybe_unused]] void SplitOf(const uint8_t* symbols, const uint8_t* classes, int64_t count,
                              const uint8_t* pivots, uint8_t* differences, uint64_t* bits) {
  for (int64_t first = 0; first < count; first += 64) {
    uint64_t word = 0;
    for (int64_t i = first; i < std::min(first + 64, count); ++i) {
      const int difference = symbols[i] - pivots[classes[i]];
      word |= uint64_t{difference >= 0} << (i - first);
      differences[i] = static_cast<uint8_t>(difference);
    }
    bits[first / 64] = word;
  }
}

[[maybe_unused]] void JoinOf(const uint64_t* bits, const uint8_t* ups, const uint8_t* downs,
                             const uint8_t* classes, const uint8_t* pivots, int64_t count,
                             uint8_t* symbols) {
  for (int64_t i = 0; i < count; ++i) {
    // Branch-free: the bits are almost random, so a branch would be mispredicted.
    const int up = bits[i / 64] >> (i % 64) & 1;
    const int above = *ups, below = ~*downs;
    symbols[i] = static_cast<uint8_t>(pivots[classes[i]] + (below ^ ((above ^ below) & -up)));
    ups += up;
    downs += 1 - up;
  }
}

[[maybe_unused]] void PutLowOf(const uint32_t* lengths, const uint8_t* symbols, int64_t count,
                               BitWriter* to) {
  for (int64_t i = 0; i < count; ++i) {
    to->Put(lengths[i] - kOfSymbol.minimum[symbols[i]], kOfSymbol.raw_bits[symbols[i]]);
  }
}

[[maybe_unused]] void TakeLowOf(const uint8_t* symbols, int64_t count, BitReader* from,
                                uint32_t* lengths) {
  for (int64_t i = 0; i < count; ++i) {
    lengths[i] = kOfSymbol.minimum[symbols[i]] + from->Get(kOfSymbol.raw_bits[symbols[i]]);
  }
}

template <int kLanes>
[[maybe_unused]] std::byte* EncodeLanes(const uint64_t* bits, const uint8_t* classes, int64_t count,
                                        const LaneModel& model, uint32_t* states, std::byte* end) {
  for (int64_t i = count - 1; i >= 0; --i) {
    const bool bit = bits[i / 64] >> (i % 64) & 1;
    const uint32_t zero = model.zero[classes[i]], size = bit ? kLaneScale - zero : zero;
    uint32_t& x = states[i % kLanes];
    if (x >= size << 16) {
      end -= 2;
      const auto word = static_cast<uint16_t>(x);
      std::memcpy(end, &word, 2);
      x >>= 16;
    }
    x = (x / size << kLaneBits) + x % size + (bit ? zero : 0);
  }
  return end;
}

template <int kLanes>
[[maybe_unused]] const std::byte* DecodeLanes(const std::byte* at, const std::byte* end,
                                              const uint8_t* classes, int64_t count,
                                              const uint32_t* zero_of, uint32_t* states,
                                              uint64_t* bits) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t zero = zero_of[classes[i]];
    uint32_t& x = states[i % kLanes];
    const uint32_t slot = x & (kLaneScale - 1);
    const bool bit = slot >= zero;
    if (i % 64 == 0) bits[i / 64] = 0;
    bits[i / 64] |= static_cast<uint64_t>(bit) << (i % 64);
    x = bit ? (kLaneScale - zero) * (x >> kLaneBits) + slot - zero : zero * (x >> kLaneBits) + slot;
    if (x < kMinLaneState) {
      if (end - at < 2) return nullptr;
      uint16_t word;
      std::memcpy(&word, at, 2);
      at += 2;
      x = x << 16 | word;
    }
  }
  return at;
}

}  // namespace
}  // namespace jaxccomp::delta
