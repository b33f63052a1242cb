// The positions of the sent values in a chunk, in ascending order: read from a table, or drawn at random.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/random.h"
#include "codec/sparse/layout.h"
#include "codec/sparse/words.h"

namespace jaxccomp::sparse {

// A table of the number of values in each sub-block, then their offsets in it.
class TablePositions {
 public:
  TablePositions(const std::byte* counts, const std::byte* offsets)
      : counts_(counts), offsets_(offsets), left_(Load<uint32_t>(counts)) {}

  // Whether the table places exactly `kept` values, in order and within the chunk.
  static bool Valid(const std::byte* counts, const std::byte* offsets, int64_t count,
                    int64_t kept);

  // Call at most once per value.
  int64_t Next() {
    while (left_ == 0) {
      counts_ += sizeof(uint32_t);
      left_ = Load<uint32_t>(counts_);
      begin_ += kSubBlock;
    }
    --left_;
    const auto offset = Load<uint16_t>(offsets_);
    offsets_ += sizeof(uint16_t);
    return begin_ + offset;
  }

 private:
  const std::byte* counts_;
  const std::byte* offsets_;
  uint32_t left_;
  int64_t begin_ = 0;
};

// One random position in each of `kept` equal parts; part j begins at floor(j * count / kept). `first`
// is the chunk's position in the tensor.
class DrawnPositions {
 public:
  DrawnPositions(const RandomKey& key, int64_t first, int64_t count, int64_t kept)
      : key_(key),
        counter_(static_cast<uint64_t>(first)),
        part_(count / kept),
        rest_(count % kept),
        kept_(kept) {}

  int64_t Next() {
    begin_ += length_;
    length_ = part_;
    carry_ += rest_;
    if (carry_ >= kept_) {
      carry_ -= kept_;
      ++length_;
    }
    if (used_ == 4) {
      numbers_ = Philox(key_, counter_++);
      used_ = 0;
    }
    return begin_ + static_cast<int64_t>(
                        uint64_t{numbers_[used_++]} * static_cast<uint64_t>(length_) >> 32);
  }

  // The length of the last position's part.
  int64_t length() const { return length_; }

 private:
  RandomKey key_;
  uint64_t counter_;
  int64_t part_, rest_, kept_;
  int64_t begin_ = 0, length_ = 0, carry_ = 0;
  Philox4x32 numbers_ = {};
  int used_ = 4;
};

}  // namespace jaxccomp::sparse
