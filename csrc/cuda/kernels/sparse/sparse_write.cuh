// The last kernel of "topk" and "dgc": a CTA for each sub-block writes those of its values that travel
// where they belong, which follows from how many those of the sub-blocks in front are. A warp has two
// of its tiles.
#pragma once

#include "cuda/kernels/common/look_back.cuh"
#include "cuda/kernels/sparse/sparse_select.cuh"

namespace jaxccomp::cuda {

struct WriteTableJob {
  SelectJob select;
  std::byte* code;
  int64_t number_bytes;   // in front of the table: sparse::kNumberBytes, or 0
  int64_t nonfinite_bytes;
  int64_t* size;          // or null
};

// How many values are above the cut, and at it: in one number, as neither reaches 2^31.
struct AboveAndAt {
  uint64_t both;

  JAXCCOMP_HOST_DEVICE static uint64_t Of(uint32_t above, uint32_t at) {
    return static_cast<uint64_t>(above) << 31 | at;
  }
  JAXCCOMP_HOST_DEVICE uint32_t above() const { return static_cast<uint32_t>(both >> 31); }
  JAXCCOMP_HOST_DEVICE uint32_t at() const { return static_cast<uint32_t>(both) & 0x7fffffff; }
  // How many of them travel.
  JAXCCOMP_HOST_DEVICE uint32_t Kept(uint32_t ties) const {
    return above() + (at() < ties ? at() : ties);
  }
};

template <typename T>
struct WriteTable {
  using Job = WriteTableJob;
  static constexpr int kCountsAt = kHistogramAt;                       // of 64 bits, for each tile
  static constexpr int kBeforeAt = kCountsAt + 2 * kTilesOfSubBlock;   // of 64 bits
  static constexpr int kTicketAt = kBeforeAt + 2;
  static constexpr int kSharedWords = kTicketAt + 2;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const SelectJob& select = job.select;
    const Selection selection = SelectionOf(select);
    const int64_t sub_blocks = CeilDiv(select.count, sparse::kSubBlock);
    if (!selection.finite) {
      WriteNonFinite(lanes, sub_blocks, job.code, job.nonfinite_bytes);
      if (lanes.cta() == 0 && lanes.thread() == 0 && job.size != nullptr) {
        *job.size = job.nonfinite_bytes;
      }
      return;
    }
    const Cut cut =
        selection.searches ? CutBefore<T, kLevels<T>>(lanes, select) : selection.cut;
    auto* const counts = reinterpret_cast<uint64_t*>(lanes.shared() + kCountsAt);
    auto* const before = reinterpret_cast<uint64_t*>(lanes.shared() + kBeforeAt);
    uint32_t* const ticket = lanes.shared() + kTicketAt;
    if (lanes.thread() == 0) *ticket = simt::AtomicAdd(&select.state->ticket, 1);
    lanes.Sync();
    const int64_t sub_block = *ticket, first_tile = sub_block * kTilesOfSubBlock;
    const int warp = lanes.thread() / kWarp, lane = lanes.thread() % kWarp;
    const uint32_t below = (1u << lane) - 1;

    JAXCCOMP_NO_UNROLL
    for (int t = warp; t < kTilesOfSubBlock; t += kCtaWarps) {
      const Items<T> items(select, first_tile + t, selection.listed);
      uint32_t above = 0, at = 0;
      ForEachWarp(lanes, items, cut.magnitude, lane,
                  [&](int, uint32_t, uint32_t are_above, uint32_t are_at) {
        above += static_cast<uint32_t>(simt::Popcount(are_above));
        at += static_cast<uint32_t>(simt::Popcount(are_at));
      });
      if (lane == 0) counts[t] = AboveAndAt::Of(above, at);
    }
    lanes.Sync();
    if (warp == 0) {
      uint64_t all = 0;
      for (int t = 0; t < kTilesOfSubBlock; ++t) all += counts[t];
      const uint64_t in_front = LookBack(select.look_back, sub_block, all);
      if (lane == 0) {
        *before = in_front;
        const uint32_t here = AboveAndAt{in_front + all}.Kept(cut.ties) -
                              AboveAndAt{in_front}.Kept(cut.ties);
        StoreNumber<4>(Counts(job) + sub_block * 4, here, 1);
      }
    }
    lanes.Sync();
    std::byte* const offsets = Counts(job) + sub_blocks * 4;
    std::byte* const words = offsets + int64_t{selection.kept} * 2;
    const int offsets_alignment = Alignment(offsets), words_alignment = Alignment(words);
    if (sub_block == 0 && lanes.thread() == 0) {
      job.code[0] = sparse::kFinite;
      if (job.number_bytes != 0) StoreLong(job.code + sparse::kFlagBytes, selection.kept);
      if (job.size != nullptr) {
        *job.size = words + int64_t{selection.kept} * Real<T>::kBytes - job.code;
      }
    }
    JAXCCOMP_NO_UNROLL
    for (int t = warp; t < kTilesOfSubBlock; t += kCtaWarps) {
      uint64_t both = *before;
      for (int i = 0; i < t; ++i) both += counts[i];
      const Items<T> items(select, first_tile + t, selection.listed);
      ForEachWarp(lanes, items, cut.magnitude, lane,
                  [&](int i, uint32_t word, uint32_t are_above, uint32_t are_at) {
        const AboveAndAt mine = {
            both + AboveAndAt::Of(static_cast<uint32_t>(simt::Popcount(are_above & below)),
                                  static_cast<uint32_t>(simt::Popcount(are_at & below)))};
        const bool kept = (are_above >> lane & 1) != 0 ||
                          ((are_at >> lane & 1) != 0 && mine.at() < cut.ties);
        if (kept) {
          const int64_t to = mine.Kept(cut.ties);
          StoreNumber<2>(offsets + to * 2, items.Offset(i), offsets_alignment);
          StoreNumber<Real<T>::kBytes>(words + to * Real<T>::kBytes, word, words_alignment);
        }
        both += AboveAndAt::Of(static_cast<uint32_t>(simt::Popcount(are_above)),
                               static_cast<uint32_t>(simt::Popcount(are_at)));
      });
    }
  }

 private:
  JAXCCOMP_HOST_DEVICE static std::byte* Counts(const Job& job) {
    return job.code + sparse::kFlagBytes + job.number_bytes;
  }

  // f(item, its word, which lanes' are above the cut, and at it).
  template <typename F>
  JAXCCOMP_DEVICE static void ForEachWarp(const Lanes& lanes, const Items<T>& items,
                                          uint32_t magnitude, int lane, F&& f) {
    items.ForEachWarp(lane, [&](int first, uint32_t word) {
      const bool exists = first + lane < items.length;
      const uint32_t own = word & kMagnitudeOf<T>;
      const uint32_t are_above = lanes.Ballot(exists && own > magnitude);
      const uint32_t are_at = lanes.Ballot(exists && own == magnitude);
      f(first + lane, word, are_above, are_at);
    });
  }
};

}  // namespace jaxccomp::cuda
