// Constants and sizes of the sparse codecs' formats, on host and device. The bytes:
// docs/wire_format_sparse_library.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace jaxccomp::sparse {

// The flag, the first byte.
inline constexpr std::byte kFinite{0};
inline constexpr std::byte kNonFinite{1};
inline constexpr int64_t kFlagBytes = 1;
// "dgc": the number of values sent follows the flag.
inline constexpr int64_t kNumberBytes = 8;
// "randomk": step, tensor, rank and the position of the chunk's first value follow the flag.
inline constexpr int64_t kKeyBytes = 24;

// Values per sub-block: a value's offset in it has 16 bits.
inline constexpr int64_t kSubBlock = 65536;
inline int64_t SubBlockCount(int64_t count) { return (count + kSubBlock - 1) / kSubBlock; }

// The number of values sent, of `count`; for "dgc" approximate.
inline int64_t KeptValues(double density, int64_t count) {
  if (count == 0) return 0;
  const double wanted = std::ceil(density * static_cast<double>(count));
  // Return `count` itself: as a double it may be rounded.
  if (wanted >= static_cast<double>(count)) return count;
  return std::max<int64_t>(1, static_cast<int64_t>(wanted));
}
// The most values that "dgc" sends.
inline int64_t MaxValues(double density, int64_t count) {
  return std::min(count, 2 * KeptValues(density, count));
}

// The bytes of an encoded chunk with a table of `kept` positions, after `head_bytes` bytes.
inline int64_t TableBytes(int64_t head_bytes, int64_t count, int64_t kept, int64_t value_bytes) {
  return head_bytes + SubBlockCount(count) * static_cast<int64_t>(sizeof(uint32_t)) +
         kept * (static_cast<int64_t>(sizeof(uint16_t)) + value_bytes);
}

// A sample of a chunk: all its values if they are at most kSample; otherwise one value of each of kSample
// equal parts, at aperiodic positions.
inline constexpr int kSampleBits = 12;
inline constexpr int64_t kSample = int64_t{1} << kSampleBits;
// The difference between successive positions in their parts, as a fraction of 2^32.
inline constexpr uint32_t kSampleStep = 2654435769;   // 2^32 / the golden ratio

// The rank in the sample of a magnitude that about `wanted` of the chunk's values reach. `spread` is a
// margin in standard deviations: with 3, almost surely at least `wanted` values reach it. 0: no value of the
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
