#include "codec/delta/model.h"

#include <algorithm>

namespace jaxccomp::delta {
namespace {

// 2^32 * 2^(-rate / 3); for rate 0, 2^32 * 0.98.
constexpr uint32_t kProbability[] = {
    4209067950, 3408917802, 2705659852, 2147483648, 1704458901, 1352829926, 1073741824, 852229450,
    676414963, 536870912, 426114725, 338207482, 268435456, 213057363, 169103741, 134217728,
    106528681, 84551870, 67108864, 53264341, 42275935, 33554432, 26632170, 21137968, 16777216,
    13316085, 10568984, 8388608, 6658043, 5284492, 4194304, 3329021, 2642246, 2097152, 1664511,
    1321123, 1048576, 832255, 660561, 524288, 416128, 330281, 262144, 208064, 165140, 131072,
    104032, 82570, 65536, 52016, 41285, 32768, 26008, 20643, 16384, 13004, 10321, 8192, 6502, 5161,
    4096, 3251, 2580};

// -ln(1 - p) * 2^30 for the same probabilities.
constexpr uint32_t kHazard[] = {
    4200502717, 1694822451, 1067455699, 744261118, 542872907, 406204722, 308896273, 237486889,
    184007032, 143378241, 112190957, 88066672, 69297709, 54630847, 43130702, 34089905, 26968016,
    21348803, 16909670, 13399344, 10621344, 8421548, 6678771, 5297539, 4202517, 3334193, 2645502,
    2099203, 1665802, 1321936, 1049088, 832578, 660765, 524416, 416208, 330332, 262176, 208084,
    165153, 131080, 104037, 82573, 65538, 52017, 41286, 32769, 26008, 20643, 16384, 13004, 10321,
    8192, 6502, 5161, 4096, 3251, 2580, 2048, 1625, 1290, 1024, 813, 645};
constexpr int kNibbleEscape = 15;

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
  // Returns the next nibble; -1 after the end.
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

// Predicts that a class changes twice as often as the one before.
constexpr int kRateSlope = 3;
int ExpectedRate(int before) {
  return before == kNever ? kNever : std::max(before - kRateSlope, kMinRate);
}

}  // namespace

uint32_t Model::Probability(int rate) { return kProbability[rate]; }
uint32_t Model::Hazard(int rate) { return kHazard[rate]; }

Model Model::Of(int base, const ClassCounts& values, const ClassCounts& changes) {
  Model model;
  model.base = static_cast<uint8_t>(base);
  for (int c = 0; c < kClasses; ++c) {
    model.rate[c] = kNever;
    if (changes[c] == 0) continue;
    const uint64_t probability =
        (uint64_t{changes[c]} << 32) / std::max(values[c], changes[c]);
    int rate = kMinRate;
    // Nearest in the logarithm: compares p^2 with the product of neighbours.
    while (rate + 1 < kNever && static_cast<unsigned __int128>(probability) * probability <
                                    static_cast<unsigned __int128>(kProbability[rate]) *
                                        kProbability[rate + 1]) {
      ++rate;
    }
    model.rate[c] = static_cast<uint8_t>(rate);
  }
  return model;
}

std::byte* Model::Write(std::byte* at) const {
  *at++ = static_cast<std::byte>(base);
  Nibbles nibbles(at);
  int expected = kNever;
  for (int each : rate) {
    // The difference to the prediction if from -7 to 7, else an escape and the rate.
    const int difference = each - expected + 7;
    const bool fits = difference >= 0 && difference < kNibbleEscape;
    nibbles.Put(fits ? difference : kNibbleEscape);
    if (!fits) {
      nibbles.Put(each & 15);
      nibbles.Put(each >> 4);
    }
    expected = ExpectedRate(each);
  }
  return nibbles.End();
}

int64_t Model::Read(std::span<const std::byte> from) {
  if (from.empty()) return -1;
  base = static_cast<uint8_t>(from[0]);
  NibbleReader nibbles(from.subspan(1));
  int expected = kNever;
  for (uint8_t& each : rate) {
    const int difference = nibbles.Get();
    int found = expected + difference - 7;
    if (difference == kNibbleEscape) {
      const int low = nibbles.Get(), high = nibbles.Get();
      if (low < 0 || high < 0) return -1;
      found = low | high << 4;
    }
    if (difference < 0 || found < kMinRate || found > kNever) return -1;
    each = static_cast<uint8_t>(found);
    expected = ExpectedRate(found);
  }
  return 1 + static_cast<int64_t>(nibbles.Bytes());
}

}  // namespace jaxccomp::delta
