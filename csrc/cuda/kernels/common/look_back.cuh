// Prefix sums over thread blocks in one pass: decoupled look-back (Merrill and Garland, "Single-pass parallel prefix
// scan with decoupled look-back", 2016), with one word per block.
#pragma once

#include <cstdint>

#include "cuda/kernels/common/simt.cuh"

namespace jaxccomp::cuda {

// The state in the two top bits of a word: its number is the block's own, or includes all earlier blocks; 0: not
// written yet.
inline constexpr uint64_t kOwn = uint64_t{1} << 62, kInclusive = uint64_t{2} << 62;
inline constexpr uint64_t kNumberMask = kOwn - 1;

// Called by one warp of each block: publishes `own` as number `at`, and returns the sum of all earlier numbers. Words
// are initially 0. Blocks get `at` from a ticket counter, so that all earlier blocks are already running.
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
