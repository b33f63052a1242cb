#include "codec/lossless/analyze.h"

#include <algorithm>
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
int Histogram(const uint8_t* sample, int64_t count, int32_t* keys) {
  // Four tables in turn: an increment has to wait for the last one of the same counter.
  uint16_t counts[4][256] = {};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int t = 0; t < 4; ++t) ++counts[t][sample[i + t]];
  }
  for (; i < count; ++i) ++counts[0][sample[i]];
  uint16_t sums[256];
  for (int b = 0; b < 256; ++b) {
    sums[b] = static_cast<uint16_t>(counts[0][b] + counts[1][b] + counts[2][b] + counts[3][b]);
  }
  int distinct = 0;
  for (int b = 0; b < 256; ++b) {
    keys[distinct] = sums[b] << 8 | (255 - b);
    distinct += sums[b] != 0;
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

// The best levels from `level` on, by the bits that they would need for the sample.
struct Choice {
  int64_t bits;
  uint8_t code_bits[kMaxLevels];
};

Choice BestLevels(const Symbol* symbols, int symbol_count, int used, int64_t remaining,
                  int level, int width) {
  Choice best = {remaining * width, {}};
  if (level == 0) best.bits = INT64_MAX;
  if (level == kMaxLevels || used == symbol_count) return best;
  for (int code_bits = 1; code_bits <= 2; ++code_bits) {
    const int end = std::min(used + SymbolsOfLevel(code_bits), symbol_count);
    int64_t escapes = remaining;
    for (int s = used; s < end; ++s) escapes -= symbols[s].count;
    // Whole bytes are what the last level's escapes take.
    Choice rest = BestLevels(symbols, symbol_count, end, escapes, level + 1, 8);
    rest.bits += remaining * code_bits;
    if (rest.bits >= best.bits) continue;
    best = rest;
    best.code_bits[level] = static_cast<uint8_t>(code_bits);
  }
  return best;
}

}  // namespace

PlaneHeader AnalyzePlane(const uint8_t* sample, int64_t count, int width) {
  if (IsNoise(sample, std::min(count, kGlance))) return {};
  int32_t keys[256];
  const int distinct = Histogram(sample, count, keys);
  int32_t sorted[256];
  const int kept = std::min(distinct, kMaxSymbols);
  SortFirst(keys, distinct, sorted);
  Symbol symbols[kMaxSymbols];
  for (int s = 0; s < kept; ++s) {
    symbols[s] = {sorted[s] >> 8, static_cast<uint8_t>(~sorted[s])};
  }

  const Choice choice = BestLevels(symbols, kept, 0, count, 0, width);
  PlaneHeader header;
  if (choice.bits * 50 > count * width * 49) return header;
  int used = 0;
  for (int level = 0; level < kMaxLevels && choice.code_bits[level] != 0; ++level) {
    header.code_bits[level] = choice.code_bits[level];
    for (int s = 0; s < SymbolsOfLevel(choice.code_bits[level]); ++s, ++used) {
      // A level short of symbols repeats its first, which the kernels allow.
      header.symbols[level][s] = used < kept ? symbols[used].byte : header.symbols[level][0];
    }
  }
  return header;
}

}  // namespace jaxccomp::lossless
