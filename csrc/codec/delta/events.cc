#include "codec/delta/events.h"

#include <algorithm>
#include <array>
#include <bit>

#include "codec/delta/range_coder.h"
#include "codec/delta/symbols.h"

namespace jaxccomp::delta {
namespace {

// The probability, times 2^16, of no more changes in values of this total weight: exp(-hazard) from a table
// with kSteps entries per unit of hazard. Never 0 or 1.
constexpr int kSteps = 256, kEntries = 12 * kSteps;
uint32_t NoMore(uint64_t weight, uint64_t unit) {
  static const auto table = [] {
    std::array<uint16_t, kEntries> entries{};
    constexpr uint64_t kStep = 18374829868917530624u;   // exp(-1 / 256) * 2^64
    unsigned __int128 power = ~uint64_t{0};
    // An entry is the value at the middle of its step.
    constexpr uint64_t kHalfStep = 18410747013227843584u;   // exp(-1 / 512) * 2^64
    for (auto& entry : entries) {
      const auto middle = static_cast<uint64_t>(power * kHalfStep >> 64);
      entry = static_cast<uint16_t>(std::clamp<uint64_t>(middle >> 48, 8, 65528));
      power = power * kStep >> 64;
    }
    return entries;
  }();
  const uint64_t at = weight * unit >> (42 - 8);
  return table[std::min<uint64_t>(at, kEntries - 1)];
}

// Codes a step: its direction, its length's symbol in unary (adaptive by class), and the length's low bits.
// `bit` codes an adaptive bit, `raw` codes bits verbatim. Both return the bits; a decoder ignores the arguments.
class StepBits {
 public:
  template <typename Bit, typename Raw>
  void Code(uint8_t group, uint32_t* length, bool* away, Bit bit, Raw raw) {
    *away = bit(&away_, *away);
    const int given = *length == 0 ? 0 : SymbolOf(*length);
    int symbol = 0;
    while (symbol < kSymbols - 1 && bit(Longer(group, symbol), given > symbol)) ++symbol;
    const uint32_t minimum = kOfSymbol.minimum[symbol];
    const int bits = kOfSymbol.raw_bits[symbol];
    *length = minimum + (bits == 0 ? 0 : raw(*length - minimum, bits));
  }

 private:
  // Returns the bit's state. An unused bit starts with the probability of the previous class.
  AdaptiveBit* Longer(int group, int symbol) {
    AdaptiveBit& bit = longer_[group][symbol];
    if (!bit.used() && group > 0) bit.StartAs(longer_[group - 1][symbol]);
    return &bit;
  }

  AdaptiveBit away_;
  AdaptiveBit longer_[kClasses][kSymbols];
};

}  // namespace

Weights::Weights(const Model& model) {
  uint32_t greatest = 1;
  for (int rate : model.rate) {
    if (rate != kNever) greatest = std::max(greatest, Model::Hazard(rate));
  }
  for (int c = 0; c < kClasses; ++c) {
    if (model.rate[c] == kNever) continue;
    const uint64_t hazard = Model::Hazard(model.rate[c]);
    of[c] = static_cast<uint16_t>(
        std::max<uint64_t>((hazard * kGreatestWeight + greatest / 2) / greatest, 1));
  }
  unit = greatest;   // 2^-30 / 4096 is 2^-42
}

int GroupBits(int64_t changes, int64_t granules) {
  int bits = 0;
  while (bits < kMaxGroupBits && changes * 8 << (bits + 1) <= granules * 7) ++bits;
  return bits;
}

int64_t MaxEventBytes(int64_t changes, int64_t values) {
  // A change takes at most 24 bits for its position, 16 for its presence, 12 for its direction and for each unary
  // bit of its symbol, and 30 raw bits; the end of a group takes at most 16.
  return changes * (3 + 2 + 2 * (1 + kSymbols) + 4) + values / kGranule * 2 + 64;
}

std::byte* EncodeEvents(std::span<const uint64_t> map, std::span<const uint32_t> sums,
                        const uint8_t* classes, const Weights& weights, int group_bits,
                        const Changes& changes, int64_t count, std::byte* at) {
  RangeEncoder coder(at);
  const size_t group = size_t{1} << group_bits;
  for (size_t first = 0; first < map.size(); first += group) {
    const size_t end = std::min(first + group, map.size());
    uint64_t rest = 0;
    for (size_t g = first; g < end; ++g) rest += sums[g];
    // passed: the weight since the last change, in earlier granules. passed_here: the weight of this granule's values
    // before `next`.
    uint64_t passed = 0;
    for (size_t g = first; g < end; ++g) {
      uint64_t passed_here = 0;
      int next = 0;
      for (uint64_t bits = map[g]; bits != 0; bits &= bits - 1) {
        const int place = std::countr_zero(bits);
        const uint8_t* const c = classes + g * kGranule;
        coder.PutBit(true, (1 << 16) - NoMore(rest, weights.unit));
        uint64_t start = passed;
        for (; next < place; ++next) {
          start += weights.of[c[next]];
          passed_here += weights.of[c[next]];
        }
        const uint64_t size = weights.of[c[place]];
        coder.Put(start, size, rest);
        rest -= start + size;
        passed = 0;
        passed_here += size;
        ++next;
      }
      passed += sums[g] - passed_here;
    }
    if (rest > 0) coder.PutBit(false, (1 << 16) - NoMore(rest, weights.unit));
  }
  StepBits steps;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t length = changes.lengths[i];
    bool away = changes.away[i / 64] >> (i % 64) & 1;
    steps.Code(
        changes.classes[i], &length, &away,
        [&](AdaptiveBit* of, bool bit) {
          coder.PutBit(bit, of->yes());
          of->Learn(bit);
          return bit;
        },
        [&](uint32_t bits, int n) {
          coder.PutRaw(bits, n);
          return bits;
        });
  }
  return coder.End();
}

bool DecodeEvents(std::span<const std::byte> from, std::span<const uint32_t> sums,
                  const uint8_t* classes, const Weights& weights, int group_bits,
                  int64_t count, std::span<uint64_t> map, const Changes& changes) {
  RangeDecoder coder(from);
  const size_t group = size_t{1} << group_bits;
  int64_t found = 0;
  for (size_t first = 0; first < map.size(); first += group) {
    const size_t end = std::min(first + group, map.size());
    uint64_t rest = 0;
    for (size_t g = first; g < end; ++g) {
      rest += sums[g];
      map[g] = 0;
    }
    size_t g = first;
    int next = 0;                // the first undecoded value of granule g
    uint64_t here = sums[first];   // the weight of granule g's values from `next` on
    while (rest > 0 && coder.GetBit((1 << 16) - NoMore(rest, weights.unit))) {
      uint64_t target = coder.Get(rest), start = 0;
      while (target >= here) {
        target -= here;
        start += here;
        here = sums[++g];
        next = 0;
      }
      const uint8_t* const c = classes + g * kGranule;
      while (target >= weights.of[c[next]]) {
        target -= weights.of[c[next]];
        start += weights.of[c[next]];
        here -= weights.of[c[next]];
        ++next;
      }
      const uint64_t size = weights.of[c[next]];
      coder.Take(start, size);
      if (found == count) return false;
      map[g] |= uint64_t{1} << next;
      changes.classes[found++] = c[next];
      rest -= start + size;
      here -= size;
      ++next;
    }
  }
  if (found != count) return false;
  std::fill_n(changes.away, (count + 63) / 64, 0);
  StepBits steps;
  for (int64_t i = 0; i < count; ++i) {
    bool away = false;
    changes.lengths[i] = 0;
    steps.Code(
        changes.classes[i], &changes.lengths[i], &away,
        [&](AdaptiveBit* of, bool) {
          const bool bit = coder.GetBit(of->yes());
          of->Learn(bit);
          return bit;
        },
        [&](uint32_t, int n) { return coder.GetRaw(n); });
    changes.away[i / 64] |= uint64_t{away} << (i % 64);
  }
  return coder.AllTaken();
}

}  // namespace jaxccomp::delta
