#include "codec/lossless/analyze.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace jaxccomp::lossless {
namespace {

// A look at so many bytes tells noise from everything else.
constexpr int64_t kGlance = 128;
// Noise of 8 bits shows 101 +- 4 different bytes at a glance, of 7 bits 81 +- 4. What shows more
// than this has too many symbols as common as those that can be coded.
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

// A key for each byte that occurs, which is greater the commoner the byte is and among equally
// common ones the smaller: count << 8 | ~byte. Returns how many there are.
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

// The greatest keys first, as many of them as can be symbols.
void SortFirst(int32_t* keys, int count, int32_t* sorted) {
  constexpr int kFew = 48;
  if (count > kFew) {
    const int kept = std::min(count, kMaxSymbols);
    std::partial_sort(keys, keys + kept, keys + count, std::greater<>());
    std::copy(keys, keys + kept, sorted);
    return;
  }
  // The place of a key is the number of greater ones: no branch that could be mispredicted.
  for (int i = 0; i < count; ++i) {
    int place = 0;
    for (int j = 0; j < count; ++j) place += keys[j] > keys[i];
    sorted[place] = keys[i];
  }
}

// The code widths of levels that take the fewest bits for the sample: from the last level back, for
// every number of symbols that the levels before may have taken, the better of ending there and of
// either width. Returns the bits.
int64_t BestLevels(const Symbol* symbols, int symbol_count, int64_t count, uint8_t* code_bits) {
  int64_t remaining[kMaxSymbols + 1];   // bytes that are none of the first symbols
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
      // Without a symbol there is no level; the first one there is in any case.
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
      // A level short of symbols repeats its first, which the kernels allow.
      header.symbols[level][s] = used < kept ? symbols[used].byte : header.symbols[level][0];
    }
  }
  return header;
}

}  // namespace jaxccomp::lossless
