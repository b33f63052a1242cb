#include "codec/delta/model.h"

#include <algorithm>
#include <bit>

namespace jaxccomp::delta {
namespace {

// 2^32 * 2^(-rate / 3).
constexpr uint32_t kProbability[] = {
    3408917802, 3408917802, 2705659852, 2147483648, 1704458901, 1352829926, 1073741824, 852229450,
    676414963, 536870912, 426114725, 338207482, 268435456, 213057363, 169103741, 134217728,
    106528681, 84551870, 67108864, 53264341, 42275935, 33554432, 26632170, 21137968, 16777216,
    13316085, 10568984, 8388608, 6658043, 5284492, 4194304, 3329021, 2642246, 2097152, 1664511,
    1321123, 1048576, 832255, 660561, 524288, 416128, 330281, 262144, 208064, 165140, 131072,
    104032, 82570, 65536, 52016, 41285, 32768, 26008, 20643, 16384, 13004, 10321, 8192, 6502, 5161,
    4096, 3251, 2580};

// -ln(1 - 2^(-rate / 3)) * 2^30.
constexpr uint32_t kHazard[] = {
    1694822451, 1694822451, 1067455699, 744261118, 542872907, 406204722, 308896273, 237486889,
    184007032, 143378241, 112190957, 88066672, 69297709, 54630847, 43130702, 34089905, 26968016,
    21348803, 16909670, 13399344, 10621344, 8421548, 6678771, 5297539, 4202517, 3334193, 2645502,
    2099203, 1665802, 1321936, 1049088, 832578, 660765, 524416, 416208, 330332, 262176, 208084,
    165153, 131080, 104037, 82573, 65538, 52017, 41286, 32769, 26008, 20643, 16384, 13004, 10321,
    8192, 6502, 5161, 4096, 3251, 2580, 2048, 1625, 1290, 1024, 813, 645};
constexpr int kNibbleEscape = 15;

// Frequencies of symbols that sum to 2^kLengthScaleBits, at least 2 (one for each direction) where
// `weights` is not 0.
void Normalize(std::span<const uint64_t, kLengths> weights, std::span<uint16_t, kLengths> freq) {
  constexpr int64_t kTotal = 1 << kLengthScaleBits;
  uint64_t sum = 0;
  for (uint64_t w : weights) sum += w;
  int64_t left = kTotal;
  for (int s = 0; s < kLengths; ++s) {
    freq[s] = 0;
    if (weights[s] == 0) continue;
    freq[s] = static_cast<uint16_t>(std::max<uint64_t>(2, weights[s] * kTotal / sum));
    left -= freq[s];
  }
  // What is left over, or missing, is the likeliest's; where that has not enough, the next one's.
  while (left != 0) {
    uint16_t& most = *std::max_element(freq.begin(), freq.end());
    const int64_t change = left > 0 ? left : std::max<int64_t>(left, 2 - most);
    most = static_cast<uint16_t>(most + change);
    left -= change;
  }
}

// P(symbol) of a geometric distribution of lengths from 1 on, whose mean is 2^(spread / 2), times 2^32.
std::array<uint64_t, kLengths> Geometric(int spread) {
  constexpr uint64_t kOne = uint64_t{1} << 32;
  constexpr uint64_t kHalfOctave = 3037000500;   // 2^32 / sqrt(2)
  // Of ending at any length; with a mean of 1 now and then a step is longer all the same.
  uint64_t ends = (spread % 2 == 0 ? kOne : kHalfOctave) >> (spread / 2);
  if (spread == 0) ends -= kOne >> 9;
  const auto goes_on = [&](uint64_t times) {   // the probability of so many more, times 2^32
    uint64_t power = kOne - ends, all = kOne;
    for (; times > 0; times >>= 1) {
      if (times & 1) all = all * power >> 32;
      power = power * power >> 32;
    }
    return all;
  };
  std::array<uint64_t, kLengths> weights{};
  for (int s = 0; s < kLengths; ++s) {
    const uint64_t least = LeastLength(s), next = least + (uint64_t{1} << RawBits(s));
    // Never impossible.
    weights[s] = std::max<uint64_t>(goes_on(least - 1) - goes_on(next - 1), 1);
  }
  return weights;
}

std::span<const uint16_t, kLengths> GeometricFrequencies(int spread) {
  static const auto all = [] {
    std::array<std::array<uint16_t, kLengths>, kSpreads> tables{};
    for (int i = 0; i < kSpreads; ++i) Normalize(Geometric(i), tables[i]);
    return tables;
  }();
  return all[spread];
}

// Frequencies as they are listed: in eighths of an octave below 1; 255 is none.
constexpr uint8_t kNone = 255;
uint8_t ListedOf(uint64_t count, uint64_t total) {
  if (count == 0) return kNone;
  // 2^(-i / 8) between its neighbours: count * 2^k against total * 2^(f / 8), f < 8.
  int octaves = 0;
  while (count << octaves < total) ++octaves;   // below 2^40
  static constexpr uint32_t kEighths[] = {65536, 71468, 77936, 84990, 92682, 101070, 110218, 120194};
  int eighths = 0;
  for (int i = 1; i < 8; ++i) {
    if ((count << octaves) * 65536 >= total * kEighths[i]) eighths = i;
  }
  return static_cast<uint8_t>(std::min(octaves * 8 - eighths, kNone - 1));
}
uint64_t WeightOfListed(uint8_t listed) {
  static constexpr uint32_t kEighths[] = {65536, 60097, 55109, 50535, 46341, 42495, 38968, 35734};
  return listed == kNone ? 0 : std::max<uint64_t>((uint64_t{kEighths[listed % 8]} << 16) >> listed / 8, 1);
}

// False: there is nothing to code with.
bool NormalizeListed(std::span<const uint8_t, kLengths> listed,
                     std::span<uint16_t, kLengths> freq) {
  std::array<uint64_t, kLengths> weights{};
  bool any = false;
  for (int s = 0; s < kLengths; ++s) {
    weights[s] = WeightOfListed(listed[s]);
    any |= weights[s] != 0;
  }
  if (any) Normalize(weights, freq);
  return any;
}

// Where lists of frequencies are worth their room.
constexpr int64_t kListedFrom = 1024;

class Nibbles {
 public:
  explicit Nibbles(std::byte* at) : at_(at) {}
  void Put(int value) {
    if (half_) *at_++ |= static_cast<std::byte>(value << 4);
    else *at_ = static_cast<std::byte>(value);
    half_ = !half_;
  }
  std::byte* End() const { return at_ + half_; }

 private:
  std::byte* at_;
  bool half_ = false;
};

class NibbleReader {
 public:
  explicit NibbleReader(std::span<const std::byte> from) : from_(from) {}
  // -1 behind the end.
  int Get() {
    const size_t at = next_ / 2;
    if (at >= from_.size()) return -1;
    const int byte = static_cast<int>(from_[at]);
    return next_++ % 2 == 0 ? byte & 15 : byte >> 4;
  }
  size_t Bytes() const { return (next_ + 1) / 2; }

 private:
  std::span<const std::byte> from_;
  size_t next_ = 0;
};

// A class is expected to change twice as often as the one before.
constexpr int kRateSlope = 3;
int ExpectedRate(int before) {
  return before == kNever ? kNever : std::max(before - kRateSlope, kLeastRate);
}

}  // namespace

LengthCode CodeOfLength(uint32_t length) {
  const int high = std::bit_width(length) - 1;
  if (high == 0) return {0, 0};
  return {2 * high - 1 + static_cast<int>(length >> (high - 1) & 1), high - 1};
}

uint32_t LeastLength(int symbol) {
  if (symbol == 0) return 1;
  const int high = (symbol + 1) / 2;
  return (uint32_t{1} << high) + (symbol % 2 == 0 ? uint32_t{1} << (high - 1) : 0);
}

int RawBits(int symbol) { return symbol == 0 ? 0 : (symbol + 1) / 2 - 1; }

uint32_t Model::Probability(int rate) { return kProbability[rate]; }
uint32_t Model::Hazard(int rate) { return kHazard[rate]; }

Model Model::Of(int base, std::span<const ClassCounts, kClasses> counts, int64_t away_count) {
  Model model;
  model.base = static_cast<uint8_t>(base);
  int64_t all = 0;
  for (int c = 0; c < kClasses; ++c) {
    const ClassCounts& of = counts[c];
    all += of.changes;
    model.rate[c] = kNever;
    if (of.changes == 0) continue;
    const uint64_t values = static_cast<uint64_t>(std::max(of.values, of.changes));
    const uint64_t probability = (static_cast<uint64_t>(of.changes) << 32) / values;
    int rate = kLeastRate;
    // The nearest, by their geometric mean: p^2 against the product of neighbours.
    while (rate + 1 < kNever && static_cast<unsigned __int128>(probability) * probability <
                                    static_cast<unsigned __int128>(kProbability[rate]) *
                                        kProbability[rate + 1]) {
      ++rate;
    }
    model.rate[c] = static_cast<uint8_t>(rate);
    if (of.changes >= kListedFrom) {
      model.spread[c] = kListed;
      for (int s = 0; s < kLengths; ++s) {
        model.listed[c][s] = ListedOf(of.lengths[s], static_cast<uint64_t>(of.changes));
      }
      NormalizeListed(model.listed[c], model.length[c]);
      continue;
    }
    // The mean, in half octaves.
    uint64_t sum = 0;
    for (int s = 0; s < kLengths; ++s) {
      const uint64_t middle = LeastLength(s) + (uint64_t{1} << RawBits(s)) / 2;
      sum += of.lengths[s] * middle;
    }
    const uint64_t changes = static_cast<uint64_t>(of.changes);
    int spread = 0;
    // mean^2 >= 2^(spread + 1/2)
    while (spread + 2 < kSpreads && spread < 40 &&
           static_cast<unsigned __int128>(sum) * sum * 65536 >=
               static_cast<unsigned __int128>(changes) * changes * (uint64_t{92682} << spread)) {
      ++spread;
    }
    spread += spread >= kListed;   // that number is taken
    model.spread[c] = static_cast<uint8_t>(spread);
    std::ranges::copy(GeometricFrequencies(spread), model.length[c].begin());
  }
  model.away = static_cast<uint8_t>(all == 0 ? 8 : std::min<int64_t>(away_count * 16 / all, 15));
  return model;
}

std::byte* Model::Write(std::byte* at) const {
  *at++ = static_cast<std::byte>(base);
  Nibbles nibbles(at);
  nibbles.Put(away);
  int expected = kNever;
  for (int c = 0; c < kClasses; ++c) {
    // The difference to what is expected from -7 to 7, else an escape and the rate.
    const int difference = rate[c] - expected + 7;
    const bool fits = difference >= 0 && difference < kNibbleEscape;
    nibbles.Put(fits ? difference : kNibbleEscape);
    if (!fits) {
      nibbles.Put(rate[c] & 15);
      nibbles.Put(rate[c] >> 4);
    }
    expected = ExpectedRate(rate[c]);
  }
  for (int c = 0; c < kClasses; ++c) {
    if (rate[c] == kNever) continue;
    nibbles.Put(std::min<int>(spread[c], kNibbleEscape));
    if (spread[c] < kNibbleEscape) continue;
    // 0: listed. Else a greater spread.
    const int more = spread[c] - kListed;
    nibbles.Put(more & 15);
    nibbles.Put(more >> 4);
  }
  at = nibbles.End();
  for (int c = 0; c < kClasses; ++c) {
    if (rate[c] == kNever || spread[c] != kListed) continue;
    int used = kLengths;
    while (listed[c][used - 1] == kNone) --used;
    *at++ = static_cast<std::byte>(used);
    for (int s = 0; s < used; ++s) *at++ = static_cast<std::byte>(listed[c][s]);
  }
  return at;
}

int64_t Model::Read(std::span<const std::byte> from) {
  if (from.empty()) return -1;
  base = static_cast<uint8_t>(from[0]);
  NibbleReader nibbles(from.subspan(1));
  bool good = true;
  const auto get = [&] {
    const int value = nibbles.Get();
    good &= value >= 0;
    return value & 15;
  };
  away = static_cast<uint8_t>(get());
  int expected = kNever;
  for (int c = 0; c < kClasses; ++c) {
    const int difference = get();
    int found = expected + difference - 7;
    if (difference == kNibbleEscape) {
      found = get();
      found |= get() << 4;
    }
    if (!good || found < kLeastRate || found > kNever) return -1;
    rate[c] = static_cast<uint8_t>(found);
    expected = ExpectedRate(found);
  }
  for (int c = 0; c < kClasses; ++c) {
    if (rate[c] == kNever) continue;
    int found = get();
    if (found == kNibbleEscape) {
      found += get();
      found += get() << 4;
    }
    if (!good || found >= kSpreads) return -1;
    spread[c] = static_cast<uint8_t>(found);
    if (found != kListed) std::ranges::copy(GeometricFrequencies(found), length[c].begin());
  }
  size_t at = 1 + nibbles.Bytes();
  for (int c = 0; c < kClasses; ++c) {
    if (rate[c] == kNever || spread[c] != kListed) continue;
    if (at >= from.size()) return -1;
    const auto used = static_cast<size_t>(from[at++]);
    if (used > kLengths || used > from.size() - at) return -1;
    listed[c].fill(kNone);
    for (size_t s = 0; s < used; ++s) listed[c][s] = static_cast<uint8_t>(from[at++]);
    if (!NormalizeListed(listed[c], length[c])) return -1;
  }
  return static_cast<int64_t>(at);
}

}  // namespace jaxccomp::delta
