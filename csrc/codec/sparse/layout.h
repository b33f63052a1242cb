// What the formats of the sparse codecs come to in numbers, wherever they are coded.
// docs/wire_format_sparse_library.md has their bytes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace jaxccomp::sparse {

// The flag, which comes first.
inline constexpr std::byte kFinite{0};
inline constexpr std::byte kNonFinite{1};
inline constexpr int64_t kFlagBytes = 1;
// What "dgc" has behind it: how many values travel.
inline constexpr int64_t kNumberBytes = 8;
// What "randomk" has behind it: step, tensor, rank and the position of the chunk's first value.
inline constexpr int64_t kKeyBytes = 24;

// Values are cut into sub-blocks of so many, in which 16 bits say where a value is.
inline constexpr int64_t kSubBlock = 65536;
inline int64_t SubBlockCount(int64_t count) { return (count + kSubBlock - 1) / kSubBlock; }

// How many of `count` values travel; in "dgc" about so many.
inline int64_t KeptValues(double density, int64_t count) {
  if (count == 0) return 0;
  const double wanted = std::ceil(density * static_cast<double>(count));
  // `count` itself need not be a double.
  if (wanted >= static_cast<double>(count)) return count;
  return std::max<int64_t>(1, static_cast<int64_t>(wanted));
}
// More than which "dgc" never sends.
inline int64_t MostValues(double density, int64_t count) {
  return std::min(count, 2 * KeptValues(density, count));
}

// Of a chunk with a table of `kept` places; `head_bytes` come before the table.
inline int64_t TableBytes(int64_t head_bytes, int64_t count, int64_t kept, int64_t value_bytes) {
  return head_bytes + SubBlockCount(count) * static_cast<int64_t>(sizeof(uint32_t)) +
         kept * (static_cast<int64_t>(sizeof(uint16_t)) + value_bytes);
}

// A sample of a chunk: all its values where they are no more than kSample, else one of each of as many
// equal parts, at places without a period.
inline constexpr int kSampleBits = 12;
inline constexpr int64_t kSample = int64_t{1} << kSampleBits;
// The difference of one place's fraction to the next one's.
inline constexpr uint32_t kSampleStep = 2654435769;   // 2^32 / the golden ratio

// About `wanted` of the chunk's values reach the magnitude of this rank in the sample; more of them,
// almost surely, if `spread` is 3, by this number of standard deviations. 0 where no value of the
// sample is small enough.
inline int64_t SampleRank(int64_t count, int64_t wanted, double spread) {
  if (count <= kSample) return wanted;
  const double mean = static_cast<double>(kSample) * static_cast<double>(wanted) /
                      static_cast<double>(count);
  const double rank = std::ceil(mean + spread * std::sqrt(mean) + spread);
  if (rank >= static_cast<double>(kSample)) return 0;
  return std::max<int64_t>(1, static_cast<int64_t>(rank));
}

}  // namespace jaxccomp::sparse
