// A range coder (Martin 1979): codes numbers of known frequencies as bytes; decodes them in the same order.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace jaxccomp::delta {

// Totals are at most 2^24; the range stays at least 2^32.
class RangeEncoder {
 public:
  // `at` has room for 8 bytes, and for 4 bytes per 32 bits of information.
  explicit RangeEncoder(std::byte* at) : begin_(at), at_(at) {}

  // Codes a number whose share is [start, start + size) of `total`.
  void Put(uint64_t start, uint64_t size, uint64_t total) { Narrow(range_ / total, start, size); }
  // A 1 has the probability `yes` / 2^16, with 0 < yes < 2^16.
  void PutBit(bool bit, uint32_t yes) {
    Narrow(range_ >> 16, bit ? 0 : yes, bit ? yes : (1 << 16) - yes);
  }
  // Up to 32 bits, verbatim.
  void PutRaw(uint32_t bits, int count) { Narrow(range_ >> count, bits, 1); }
  // Returns the end.
  std::byte* End() {
    // Any number in the range is valid: take one that ends with zero bytes, which the decoder appends itself.
    Add(0xffffffff);
    Emit();
    while (at_ > begin_ && at_[-1] == std::byte{0}) --at_;
    return at_;
  }

 private:
  void Narrow(uint64_t part, uint64_t start, uint64_t size) {
    Add(part * start);
    range_ = part * size;
    if (range_ >> 32 != 0) return;
    Emit();
    low_ <<= 32;
    range_ <<= 32;
  }
  void Add(uint64_t more) {
    low_ += more;
    if (low_ >= more) return;
    // Propagate the carry into bytes written before.
    for (std::byte* p = at_; p > begin_;) {
      --p;
      *p = static_cast<std::byte>(static_cast<uint8_t>(*p) + 1);
      if (*p != std::byte{0}) return;
    }
  }
  // The high 32 bits, the highest first.
  void Emit() {
    for (int shift = 56; shift >= 32; shift -= 8) *at_++ = static_cast<std::byte>(low_ >> shift);
  }

  std::byte* const begin_;
  std::byte* at_;
  uint64_t low_ = 0, range_ = ~uint64_t{0};
};

// Decodes any bytes without an error: altered bytes give other numbers.
class RangeDecoder {
 public:
  explicit RangeDecoder(std::span<const std::byte> from)
      : at_(from.data()), end_(from.data() + from.size()) {
    code_ = static_cast<uint64_t>(Next()) << 32;
    code_ |= Next();
  }

  // Returns a number below `total`. Then call Take with the share that contains the number.
  uint64_t Get(uint64_t total) {
    part_ = range_ / total;
    return std::min(code_ / part_, total - 1);
  }
  void Take(uint64_t start, uint64_t size) { Narrow(start, size); }
  bool GetBit(uint32_t yes) {
    part_ = range_ >> 16;
    const bool bit = code_ < part_ * yes;
    Narrow(bit ? 0 : yes, bit ? yes : (1 << 16) - yes);
    return bit;
  }
  uint32_t GetRaw(int count) {
    part_ = range_ >> count;
    const uint64_t bits = std::min(code_ / part_, (uint64_t{1} << count) - 1);
    Narrow(bits, 1);
    return static_cast<uint32_t>(bits);
  }
  bool AllTaken() const { return at_ == end_; }

 private:
  void Narrow(uint64_t start, uint64_t size) {
    code_ -= part_ * start;
    range_ = part_ * size;
    if (range_ >> 32 != 0) return;
    code_ = code_ << 32 | Next();
    range_ <<= 32;
  }
  uint32_t Next() {
    if (end_ - at_ >= 4) {
      uint32_t word;
      std::memcpy(&word, at_, 4);
      at_ += 4;
      return __builtin_bswap32(word);
    }
    uint32_t word = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      if (at_ < end_) word |= static_cast<uint32_t>(*at_++) << shift;
    }
    return word;
  }

  const std::byte* at_;
  const std::byte* const end_;
  uint64_t code_ = 0, range_ = ~uint64_t{0}, part_ = 0;
};

// The probability of a bit, times 2^16, estimated from earlier ones (Krichevsky and Trofimov 1981; in the end
// about the latest 128).
class AdaptiveBit {
 public:
  uint32_t yes() const { return yes_; }
  bool used() const { return seen_ > 0; }
  void StartAs(const AdaptiveBit& other) { yes_ = other.yes_; }
  void Learn(bool bit) {
    if (seen_ < kMaxSeen) ++seen_;
    const int32_t to = bit ? (1 << 16) - kMinProbability : kMinProbability;
    yes_ = static_cast<uint16_t>(yes_ + (to - yes_) * kShare[seen_] / (1 << 15));
  }

 private:
  static constexpr int kMaxSeen = 128;
  static constexpr int32_t kMinProbability = 24;
  static constexpr auto kShare = [] {
    std::array<int32_t, kMaxSeen + 1> shares{};
    for (int n = 0; n <= kMaxSeen; ++n) shares[n] = (1 << 15) / (n + 1);
    return shares;
  }();
  uint16_t yes_ = 1 << 15;
  uint8_t seen_ = 0;
};

}  // namespace jaxccomp::delta
