#include "codec/lossless/analyze.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace jaxccomp::lossless {
namespace {

// The number of bytes that suffices to distinguish noise from other data.
constexpr int64_t kGlance = 128;
// kGlance bytes of 8-bit noise have 101 +- 4 distinct values, of 7-bit noise 81 +- 4. A plane with more distinct
// values than kNoise has too many equally common symbols to be coded.
constexpr int kNoise = 84;

struct Symbol {
  int32_t count;
  uint8_t byte;
};

bool IsNoise(const uint8_t* sample, int64_t count) {
  uint8_t seen[256] = {};
  for (int64_t i = 0; i < count; ++i) seen[sample[i]] = 1;
  int distinct = 0;
  for (uint8_t flag : seen) distinct += flag;
  return distinct > kNoise;
}

// Writes a sort key for each byte that occurs: count << 8 | ~byte. Commoner bytes have greater keys; among
// equally common bytes, the smaller one has the greater key. Returns the number of keys.
int Keys(const Kernels& kernels, const uint8_t* sample, int64_t count, int32_t* keys) {
  uint16_t counts[256];
  kernels.histogram(sample, count, counts);
  int distinct = 0;
  for (int b = 0; b < 256; b += 4) {
    uint64_t four;
    std::memcpy(&four, counts + b, 8);
    if (four == 0) continue;
    for (int i = b; i < b + 4; ++i) {
      keys[distinct] = counts[i] << 8 | (255 - i);
      distinct += counts[i] != 0;
    }
  }
  return distinct;
}

// Sorts keys in descending order: all of them, or at least the kMaxSymbols greatest.
void SortFirst(int32_t* keys, int count, int32_t* sorted) {
  constexpr int kFew = 48;
  if (count > kFew) {
    const int kept = std::min(count, kMaxSymbols);
    std::partial_sort(keys, keys + kept, keys + count, std::greater<>());
    std::copy(keys, keys + kept, sorted);
    return;
  }
  // A key's place is the number of greater keys: no mispredicted branches.
  for (int i = 0; i < count; ++i) {
    int place = 0;
    for (int j = 0; j < count; ++j) place += keys[j] > keys[i];
    sorted[place] = keys[i];
  }
}

// Finds the code widths of the levels that need the fewest bits for the sample; returns these bits. Dynamic programming
// from the last level to the first: for each number of symbols that earlier levels use, it chooses the cheapest of no
// further level, a level of one-bit codes, and a level of two-bit codes.
int64_t BestLevels(const Symbol* symbols, int symbol_count, int64_t count, uint8_t* code_bits) {
  int64_t remaining[kMaxSymbols + 1];   // bytes that are not among the first s symbols
  remaining[0] = count;
  for (int s = 0; s < kMaxSymbols; ++s) {
    remaining[s + 1] = remaining[s] - (s < symbol_count ? symbols[s].count : 0);
  }
  int64_t bits[kMaxLevels + 1][kMaxSymbols + 1];
  uint8_t choice[kMaxLevels][kMaxSymbols + 1];
  for (int used = 0; used <= kMaxSymbols; ++used) bits[kMaxLevels][used] = 8 * remaining[used];
  for (int level = kMaxLevels - 1; level >= 0; --level) {
    for (int used = level; used <= 3 * level; ++used) {
      const int64_t one = remaining[used] + bits[level + 1][used + 1];
      const int64_t two = 2 * remaining[used] + bits[level + 1][used + 3];
      int64_t best = std::min(one, two);
      choice[level][used] = one <= two ? 1 : 2;
      // A level needs a symbol; the first level always exists.
      if (level > 0 && (used >= symbol_count || 8 * remaining[used] <= best)) {
        best = 8 * remaining[used];
        choice[level][used] = 0;
      }
      bits[level][used] = best;
    }
  }
  int used = 0;
  for (int level = 0; level < kMaxLevels && choice[level][used] != 0; ++level) {
    code_bits[level] = choice[level][used];
    used += SymbolsOfLevel(code_bits[level]);
  }
  return bits[0][0];
}

}  // namespace

PlaneHeader AnalyzePlane(const Kernels& kernels, const uint8_t* sample, int64_t count,
                         int width) {
  if (IsNoise(sample, std::min(count, kGlance))) return {};
  int32_t keys[256];
  const int distinct = Keys(kernels, sample, count, keys);
  int32_t sorted[256];
  const int kept = std::min(distinct, kMaxSymbols);
  SortFirst(keys, distinct, sorted);
  Symbol symbols[kMaxSymbols];
  for (int s = 0; s < kept; ++s) {
    symbols[s] = {sorted[s] >> 8, static_cast<uint8_t>(~sorted[s])};
  }

  PlaneHeader header;
  uint8_t code_bits[kMaxLevels] = {};
  if (BestLevels(symbols, kept, count, code_bits) * 50 > count * width * 49) return header;
  int used = 0;
  for (int level = 0; level < kMaxLevels && code_bits[level] != 0; ++level) {
    header.code_bits[level] = code_bits[level];
    for (int s = 0; s < SymbolsOfLevel(code_bits[level]); ++s, ++used) {
      // A level with too few symbols repeats its first; the kernels allow it.
      header.symbols[level][s] = used < kept ? symbols[used].byte : header.symbols[level][0];
    }
  }
  return header;
}

}  // namespace jaxccomp::lossless
