// Bit streams, low bits of a byte first, and variable-length numbers (LEB128).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace jaxccomp::delta {

// LEB128.
inline std::byte* PutNumber(std::byte* at, uint64_t number) {
  for (; number >= 128; number >>= 7) *at++ = static_cast<std::byte>(number | 128);
  *at++ = static_cast<std::byte>(number);
  return at;
}

// Removes a LEB128 number from the front of `from`; -1 if there is none below 2^35.
inline int64_t TakeNumber(std::span<const std::byte>* from) {
  int64_t number = 0;
  for (int shift = 0; shift < 35 && !from->empty(); shift += 7) {
    const auto byte = static_cast<int64_t>(from->front());
    *from = from->subspan(1);
    number |= (byte & 127) << shift;
    if (byte < 128) return number;
  }
  return -1;
}

class BitWriter {
 public:
  // Also overwrites up to 8 bytes after the last bit.
  explicit BitWriter(std::byte* at) : at_(at) {}
  // `count` is at most 56; higher bits of `bits` are 0.
  void Put(uint64_t bits, int count) {
    held_ |= bits << count_;
    count_ += count;
    std::memcpy(at_, &held_, sizeof(held_));
    at_ += count_ / 8;
    held_ >>= count_ & ~7;
    count_ &= 7;
  }
  std::byte* End() const { return at_ + (count_ > 0); }

 private:
  std::byte* at_;
  uint64_t held_ = 0;
  int count_ = 0;
};

class BitReader {
 public:
  // Also reads up to 8 bytes after the last one.
  explicit BitReader(std::span<const std::byte> from) : from_(from) {}
  uint32_t Get(int count) {
    const uint64_t at = next_ / 8;
    if (at > from_.size()) return 0;
    uint64_t bits;
    std::memcpy(&bits, from_.data() + at, sizeof(bits));
    bits = bits >> (next_ % 8) & ((uint64_t{1} << count) - 1);
    next_ += static_cast<uint64_t>(count);
    return static_cast<uint32_t>(bits);
  }
  // at() is the byte of the next bit; skipped() is the number of bits already taken from it.
  const std::byte* at() const { return from_.data() + next_ / 8; }
  int skipped() const { return static_cast<int>(next_ % 8); }
  // Whether `count` more bits are left; Skip passes over them.
  bool Has(int64_t count) const { return next_ + static_cast<uint64_t>(count) <= 8 * from_.size(); }
  void Skip(int64_t count) { next_ += static_cast<uint64_t>(count); }
  // Whether the last byte was reached: no whole byte is left.
  bool AllTaken() const { return (next_ + 7) / 8 == from_.size(); }

 private:
  std::span<const std::byte> from_;
  uint64_t next_ = 0;
};

}  // namespace jaxccomp::delta
