#include "codec/lossless/analyze.h"

#include <algorithm>

namespace jaxccomp::lossless {
namespace {

// A look at so many bytes tells noise from everything else.
constexpr int64_t kGlance = 128;
// Noise of 8 bits shows 101 +- 4 different bytes at a glance, of 7 bits 81 +- 4. What shows more
// than this has 40 symbols rarer than the nine that can be coded, each as common as they are.
constexpr int kNoise = 84;

struct Symbol {
  uint16_t count;
  uint8_t byte;
};

// The commonest first, and of equal ones the smallest.
bool Before(const Symbol& a, const Symbol& b) {
  return a.count != b.count ? a.count > b.count : a.byte < b.byte;
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
  // Two counts per byte, in turn: an increment of the same counter has to wait for the last.
  uint16_t counts[2][256] = {};
  uint8_t seen[256];
  int distinct = 0;
  const auto add = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint8_t byte = sample[i];
      seen[distinct] = byte;
      distinct += counts[0][byte] + counts[1][byte] == 0;
      ++counts[i & 1][byte];
    }
  };
  add(0, std::min(count, kGlance));
  if (distinct > kNoise) return {};
  add(std::min(count, kGlance), count);

  Symbol symbols[kMaxSymbols + 1];
  int kept = 0;
  for (int d = 0; d < distinct; ++d) {
    const uint8_t byte = seen[d];
    const Symbol symbol = {static_cast<uint16_t>(counts[0][byte] + counts[1][byte]), byte};
    if (kept == kMaxSymbols && !Before(symbol, symbols[kept - 1])) continue;
    int at = kept < kMaxSymbols ? kept++ : kept - 1;
    for (; at > 0 && Before(symbol, symbols[at - 1]); --at) symbols[at] = symbols[at - 1];
    symbols[at] = symbol;
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
