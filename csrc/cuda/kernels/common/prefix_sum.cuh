// Prefix sums over the threads of a block, of kWarps whole warps.
#pragma once

#include <cstdint>

#include "cuda/kernels/common/simt.cuh"

namespace jaxccomp::cuda {

struct Prefix {
  uint64_t before;   // of the threads in front
  uint64_t total;
};

// `sums` has kWarps entries. The threads have met once when this returns; before `sums` is used
// again they must have met once more.
template <int kWarps>
JAXCCOMP_DEVICE Prefix PrefixSum(uint64_t own, uint64_t* sums) {
  uint64_t inclusive = own;
  JAXCCOMP_UNROLL
  for (unsigned d = 1; d < 32; d *= 2) {
    const uint64_t below = simt::ShuffleUp(inclusive, d);
    if (simt::Lane() >= d) inclusive += below;
  }
  if (simt::Lane() == 31) sums[simt::Warp()] = inclusive;
  simt::Sync();
  uint64_t warps = simt::Lane() < kWarps ? sums[simt::Lane()] : 0;
  JAXCCOMP_UNROLL
  for (unsigned d = 1; d < kWarps; d *= 2) {
    const uint64_t below = simt::ShuffleUp(warps, d);
    if (simt::Lane() >= d) warps += below;
  }
  const uint64_t total = simt::Shuffle(warps, kWarps - 1);
  const uint64_t earlier = simt::Shuffle(warps, (simt::Warp() + 31) & 31);
  return {inclusive - own + (simt::Warp() == 0 ? 0 : earlier), total};
}

// Where a thread has one thing in each of up to four rows, and all threads' things of a row come
// before those of the next.
template <int kRows>
struct RowRanks {
  uint32_t before[kRows];   // what things in front of each have counted
  uint32_t total;
};

// A row's count is 16 bits of `counts`, and so is its sum over all threads. `sums` as above.
template <int kWarps, int kRows>
JAXCCOMP_DEVICE RowRanks<kRows> RankRows(uint64_t counts, uint64_t* sums) {
  static_assert(kRows <= 4);
  const Prefix prefix = PrefixSum<kWarps>(counts, sums);
  RowRanks<kRows> ranks;
  uint32_t rows = 0;
  JAXCCOMP_UNROLL
  for (int j = 0; j < kRows; ++j) {
    ranks.before[j] = rows + (static_cast<uint32_t>(prefix.before >> (16 * j)) & 0xffff);
    rows += static_cast<uint32_t>(prefix.total >> (16 * j)) & 0xffff;
  }
  ranks.total = rows;
  return ranks;
}

}  // namespace jaxccomp::cuda
