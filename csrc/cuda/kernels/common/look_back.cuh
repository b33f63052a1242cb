// Sums over the blocks of threads in front, in one pass: decoupled look-back (Merrill and Garland,
// "Single-pass parallel prefix scan with decoupled look-back", 2016) over a word for each.
#pragma once

#include <cstdint>

#include "cuda/kernels/common/simt.cuh"

namespace jaxccomp::cuda {

// In a word's two top bits: the number is the block's own, or with all in front of it. 0: not yet.
inline constexpr uint64_t kOwn = uint64_t{1} << 62, kInclusive = uint64_t{2} << 62;
inline constexpr uint64_t kNumberMask = kOwn - 1;

// By one warp of each block: the sum of all numbers in front of number `at`, which is `own`. Words are
// 0 at first; blocks take their numbers by ticket, so that all that one may wait for run already.
JAXCCOMP_DEVICE uint64_t LookBack(uint64_t* state, int64_t at, uint64_t own) {
  using namespace simt;
  if (Lane() == 0) StoreRelease(state + at, (at == 0 ? kInclusive : kOwn) | own);
  uint64_t before = 0;
  for (int64_t last = at - 1; last >= 0; last -= 32) {
    const int64_t mine = last - Lane();
    uint64_t seen;
    int nearest;
    for (;;) {
      seen = mine >= 0 ? LoadAcquire(state + mine) : kInclusive;
      const uint32_t inclusive = Ballot(seen >= kInclusive);
      const uint32_t empty = Ballot(seen < kOwn);
      nearest = inclusive == 0 ? 32 : TrailingZeros(inclusive);
      if (empty == 0 || TrailingZeros(empty) > nearest) break;
      Pause();
    }
    uint64_t sum = static_cast<int>(Lane()) <= nearest ? seen & kNumberMask : 0;
    JAXCCOMP_UNROLL
    for (unsigned d = 1; d < 32; d *= 2) {
      const uint64_t below = ShuffleUp(sum, d);
      if (Lane() >= d) sum += below;
    }
    before += Shuffle(sum, 31);
    if (nearest < 32) break;
  }
  if (Lane() == 0 && at > 0) StoreRelease(state + at, kInclusive | (before + own));
  return before;
}

}  // namespace jaxccomp::cuda
