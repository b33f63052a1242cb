// Which values "topk" and "dgc" send: all above a cut and the first of those at it.
//
// A sample gives a threshold; one pass over the values lists what reaches it, the candidates. The cut
// is found among those, digit by digit in histograms. Where they are not what was hoped for, too few
// or more than the list has room for, the later kernels read the values in their place: slower, with
// the same outcome. What tiles have listed lies in the order in which they came to it, and is read tile
// by tile, so that nothing depends on that order.
#pragma once

#include "cuda/kernels/sparse/sparse_tiles.cuh"

namespace jaxccomp::cuda {

// A magnitude's digits, the greatest first.
inline constexpr int kMostLevels = 3, kMostBins = 2048;
template <typename T>
inline constexpr int kLevels = Real<T>::kBytes == 2 ? 2 : 3;
template <typename T, int kLevel>
struct Digit {
  static constexpr int kBits = kLevel == 0 ? 11 : Real<T>::kBytes == 2 ? 4 : 10;
  static constexpr int kShift = Real<T>::kBytes == 2 ? 4 - 4 * kLevel : 20 - 10 * kLevel;
  static constexpr int kBins = 1 << kBits;

  JAXCCOMP_HOST_DEVICE static int Of(uint32_t magnitude) {
    return static_cast<int>(magnitude >> kShift) & (kBins - 1);
  }
  // The digits in front.
  JAXCCOMP_HOST_DEVICE static uint32_t Above(uint32_t magnitude) {
    return kLevel == 0 ? 0 : magnitude >> (kShift + kBits);
  }
};

// The values that travel are all those above `magnitude` and the first `ties` of those that have it.
// While it is being found: the digits that are known, and the rank among those that agree in them.
struct Cut {
  uint32_t magnitude, ties;
};

struct SelectState {
  uint32_t threshold;
  uint32_t candidates;   // also those that the list has no room for
  uint32_t nonfinite;
  uint32_t ticket;
  Cut cuts[kMostLevels];                         // after each level
  uint32_t histograms[kMostLevels][kMostBins];   // of the digits of those that agree in the ones before
};

// A tile's candidates in the list.
struct TileList {
  uint32_t begin, length;
};

struct SelectJob {
  const std::byte* values;
  int alignment;
  int64_t count;
  uint32_t infinity;
  uint32_t sample_rank;   // 0: all but zeros are candidates
  // No more candidates than `most`: all of them travel. Else, and where they are to be `exact`, `kept`.
  uint32_t kept, most;
  bool exact;
  SelectState* state;
  TileList* tiles;
  uint64_t* look_back;    // a word for each sub-block
  // The candidates' places in their sub-blocks, and their words.
  uint32_t room;
  uint16_t* listed_offsets;
  std::byte* listed_words;
};

// What shared memory is for, in words.
inline constexpr int kSumsAt = 0;                              // kCtaWarps of 64 bits
inline constexpr int kFoundAt = kSumsAt + 2 * kCtaWarps;       // two
inline constexpr int kHistogramAt = kFoundAt + 4;
inline constexpr int kSelectWords = kHistogramAt + kMostBins;

JAXCCOMP_DEVICE uint64_t* SumsOf(const Lanes& lanes) {
  return reinterpret_cast<uint64_t*>(lanes.shared() + kSumsAt);
}

// The digit of the `rank`-th largest of what a histogram has counted, and its rank among its equals.
template <int kBins>
JAXCCOMP_DEVICE Cut FindDigit(const Lanes& lanes, const uint32_t* histogram, uint32_t rank) {
  constexpr int kEach = kBins < kThreads ? 1 : kBins / kThreads;
  uint32_t* const found = lanes.shared() + kFoundAt;
  const int top = kBins - 1 - lanes.thread() * kEach;
  uint32_t own[kEach], sum = 0;
  JAXCCOMP_UNROLL
  for (int i = 0; i < kEach; ++i) {
    own[i] = top - i >= 0 ? histogram[top - i] : 0;
    sum += own[i];
  }
  auto before = static_cast<uint32_t>(PrefixSum<kCtaWarps>(sum, SumsOf(lanes)).before);
  JAXCCOMP_UNROLL
  for (int i = 0; i < kEach; ++i) {
    if (before < rank && rank - before <= own[i]) {
      found[0] = static_cast<uint32_t>(top - i);
      found[1] = rank - before;
    }
    before += own[i];
  }
  lanes.Sync();
  return {found[0], found[1]};
}

template <typename T, int kLevel>
JAXCCOMP_DEVICE Cut WithDigit(const Lanes& lanes, const uint32_t* histogram, Cut cut) {
  using D = Digit<T, kLevel>;
  const Cut digit = FindDigit<D::kBins>(lanes, histogram, cut.ties);
  return {cut.magnitude << D::kBits | digit.magnitude, digit.ties};
}

// How the search stands after all candidates have been counted.
struct Selection {
  bool finite;
  bool searches;    // else `cut` is known
  bool listed;      // the list has all that can travel
  uint32_t kept;
  Cut cut;
};
JAXCCOMP_HOST_DEVICE inline Selection SelectionOf(const SelectJob& job) {
  const SelectState& state = *job.state;
  const uint32_t candidates = state.candidates;
  Selection selection = {state.nonfinite == 0, true, candidates <= job.room, job.kept,
                         {0, job.kept}};
  if (job.exact && candidates < job.kept) {
    selection.listed = false;
    if (state.threshold > 1) return selection;
    selection.searches = false;   // zeros are the rest
    selection.cut.ties -= candidates;
  } else if (candidates <= job.most) {
    selection.searches = false;
    selection.kept = candidates;
    selection.cut = {state.threshold, candidates};
  }
  return selection;
}

// The cut with the digits before kLevel.
template <typename T, int kLevel>
JAXCCOMP_DEVICE Cut CutBefore(const Lanes& lanes, const SelectJob& job) {
  if constexpr (kLevel == 0) {
    return {0, job.kept};
  } else {
    const Cut before = kLevel == 1 ? Cut{0, job.kept} : job.state->cuts[kLevel - 2];
    return WithDigit<T, kLevel - 1>(lanes, job.state->histograms[kLevel - 1], before);
  }
}

// What can travel of a tile: its candidates, or all its values.
template <typename T>
struct Items {
  const uint16_t* offsets;   // null: values in order
  const std::byte* words;
  uint32_t offset;           // of the tile
  int length;

  JAXCCOMP_HOST_DEVICE Items(const SelectJob& job, int64_t tile, bool listed)
      : offset(static_cast<uint32_t>(tile % kTilesOfSubBlock) * kTileValues) {
    const int64_t begin = tile * kTileValues;
    if (begin >= job.count) {
      offsets = nullptr;
      words = job.values;
      length = 0;
    } else if (listed) {
      const TileList list = job.tiles[tile];
      offsets = job.listed_offsets + list.begin;
      words = job.listed_words + static_cast<int64_t>(list.begin) * Real<T>::kBytes;
      length = static_cast<int>(list.length);
    } else {
      offsets = nullptr;
      words = job.values + begin * Real<T>::kBytes;
      length = static_cast<int>(ValuesIn(job.count, begin, kTileValues));
    }
  }
  JAXCCOMP_HOST_DEVICE uint32_t Word(int i) const { return LoadValue<T>(words, i); }
  // f(first, word) for 32 items after the other, of which a lane has first + lane, or 0 where there is
  // none; a few loads are under way at a time.
  template <typename F>
  JAXCCOMP_DEVICE void ForEachWarp(int lane, F&& f) const {
    constexpr int kBatch = 4;
    JAXCCOMP_NO_UNROLL
    for (int first = 0; first < length; first += kBatch * kWarp) {
      uint32_t batch[kBatch];
      JAXCCOMP_UNROLL
      for (int b = 0; b < kBatch; ++b) {
        const int i = first + b * kWarp + lane;
        batch[b] = i < length ? Word(i) : 0;
      }
      JAXCCOMP_UNROLL
      for (int b = 0; b < kBatch; ++b) {
        if (first + b * kWarp < length) f(first + b * kWarp, batch[b]);
      }
    }
  }
  // In the sub-block.
  JAXCCOMP_HOST_DEVICE uint32_t Offset(int i) const {
    return offsets != nullptr ? offsets[i] : offset + static_cast<uint32_t>(i);
  }
};

// One CTA: makes the state ready, and finds the threshold in a sample.
template <typename T>
struct BeginSelection {
  using Job = SelectJob;
  static constexpr int kSharedWords = kSelectWords;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    SelectState& state = *job.state;
    JAXCCOMP_NO_UNROLL
    for (int i = lanes.thread(); i < kMostLevels * kMostBins; i += kThreads) {
      state.histograms[i / kMostBins][i % kMostBins] = 0;
    }
    uint32_t threshold = job.sample_rank == 0 ? 1 : FromSample(lanes, job);
    threshold = threshold < 1 ? 1 : threshold > job.infinity ? job.infinity : threshold;
    if (lanes.thread() != 0) return;
    state.threshold = threshold;
    state.candidates = state.nonfinite = state.ticket = 0;
  }

 private:
  static constexpr int kEach = static_cast<int>(sparse::kSample) / kThreads;

  JAXCCOMP_DEVICE static uint32_t FromSample(Lanes& lanes, const Job& job) {
    uint32_t magnitudes[kEach];
    const int64_t part = job.count >> sparse::kSampleBits;
    const int64_t rest = job.count & (sparse::kSample - 1);
    const bool all = job.count <= sparse::kSample;
    const int size = static_cast<int>(all ? job.count : sparse::kSample);
    JAXCCOMP_UNROLL
    for (int k = 0; k < kEach; ++k) {
      const int i = k * kThreads + lanes.thread();
      int64_t at = i;
      if (!all) {
        const uint32_t place = static_cast<uint32_t>(i + 1) * sparse::kSampleStep;
        at = i * part + (i * rest >> sparse::kSampleBits) +
             static_cast<int64_t>(uint64_t{place >> 16} * static_cast<uint64_t>(part) >> 16);
      }
      magnitudes[k] = i < size ? LoadValue<T>(job.values, at) & kMagnitudeOf<T> : 0;
    }
    Cut cut = {0, job.sample_rank};
    cut = Refined<0>(lanes, magnitudes, size, cut);
    cut = Refined<1>(lanes, magnitudes, size, cut);
    if constexpr (kLevels<T> == 3) cut = Refined<2>(lanes, magnitudes, size, cut);
    return cut.magnitude;
  }

  template <int kLevel>
  JAXCCOMP_DEVICE static Cut Refined(Lanes& lanes, const uint32_t (&magnitudes)[kEach], int size,
                                     Cut cut) {
    using D = Digit<T, kLevel>;
    uint32_t* const histogram = lanes.shared() + kHistogramAt;
    for (int i = lanes.thread(); i < D::kBins; i += kThreads) histogram[i] = 0;
    lanes.Sync();
    JAXCCOMP_UNROLL
    for (int k = 0; k < kEach; ++k) {
      const bool exists = k * kThreads + lanes.thread() < size;
      if (exists && D::Above(magnitudes[k]) == cut.magnitude) {
        simt::AtomicAdd(histogram + D::Of(magnitudes[k]), 1);
      }
    }
    lanes.Sync();
    return WithDigit<T, kLevel>(lanes, histogram, cut);
  }
};

// A CTA for each tile: lists the candidates, and finds out whether all values are finite.
template <typename T>
struct ListCandidates {
  using Job = SelectJob;
  using Shape = TileShape<T>;
  static constexpr int kSharedWords = kHistogramAt;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const int64_t tile = lanes.cta(), begin = tile * kTileValues;
    const int length = static_cast<int>(ValuesIn(job.count, begin, kTileValues));
    if (tile % kTilesOfSubBlock == 0 && lanes.thread() == 0) {
      job.look_back[tile / kTilesOfSubBlock] = 0;
    }
    cuda::Run<T, Shape::kRun> rows[Shape::kRows];
    JAXCCOMP_UNROLL
    for (int r = 0; r < Shape::kRows; ++r) {
      rows[r] = LoadRun<T, Shape::kRun>(job.values + begin * Real<T>::kBytes, Shape::First(lanes, r),
                                        length, job.alignment);
    }
    const uint32_t threshold = job.state->threshold;
    uint32_t chosen[Shape::kRows] = {};   // a bit for each value
    uint64_t counts = 0;
    bool nonfinite = false;
    JAXCCOMP_UNROLL
    for (int r = 0; r < Shape::kRows; ++r) {
      JAXCCOMP_UNROLL
      for (int i = 0; i < Shape::kRun; ++i) {
        const uint32_t magnitude = rows[r].Get(i) & kMagnitudeOf<T>;
        chosen[r] |= static_cast<uint32_t>(magnitude >= threshold) << i;
        nonfinite |= magnitude >= job.infinity;
      }
      counts |= static_cast<uint64_t>(simt::Popcount(chosen[r])) << (16 * r);
    }
    if (nonfinite) job.state->nonfinite = 1;
    const auto ranks = RankRows<kCtaWarps, Shape::kRows>(counts, SumsOf(lanes));
    uint32_t* const found = lanes.shared() + kFoundAt;
    if (lanes.thread() == 0) {
      found[0] = ranks.total == 0 ? 0 : simt::AtomicAdd(&job.state->candidates, ranks.total);
      job.tiles[tile] = {found[0], ranks.total};
    }
    lanes.Sync();
    const uint32_t first = found[0];
    if (first + ranks.total > job.room) return;
    const auto offset = static_cast<uint32_t>(tile % kTilesOfSubBlock) * kTileValues;
    JAXCCOMP_UNROLL
    for (int r = 0; r < Shape::kRows; ++r) {
      uint32_t at = first + ranks.before[r];
      JAXCCOMP_UNROLL
      for (int i = 0; i < Shape::kRun; ++i) {
        if ((chosen[r] >> i & 1) == 0) continue;
        job.listed_offsets[at] =
            static_cast<uint16_t>(offset + static_cast<uint32_t>(Shape::First(lanes, r) + i));
        StoreValue<T>(job.listed_words, at, rows[r].Get(i));
        ++at;
      }
    }
  }
};

// A CTA for each sub-block: counts the digits of what agrees with the cut so far.
template <typename T, int kLevel>
struct CountDigits {
  using Job = SelectJob;
  using D = Digit<T, kLevel>;
  static constexpr int kSharedWords = kSelectWords;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const Selection selection = SelectionOf(job);
    if (!selection.finite || !selection.searches) return;
    const Cut cut = CutBefore<T, kLevel>(lanes, job);
    if (kLevel > 0 && lanes.cta() == 0 && lanes.thread() == 0) job.state->cuts[kLevel - 1] = cut;
    uint32_t* const histogram = lanes.shared() + kHistogramAt;
    for (int i = lanes.thread(); i < D::kBins; i += kThreads) histogram[i] = 0;
    lanes.Sync();
    const int lane = lanes.thread() % kWarp;
    for (int t = lanes.thread() / kWarp; t < kTilesOfSubBlock; t += kCtaWarps) {
      const Items<T> items(job, lanes.cta() * kTilesOfSubBlock + t, selection.listed);
      items.ForEachWarp(lane, [&](int first, uint32_t word) {
        const uint32_t magnitude = word & kMagnitudeOf<T>;
        if (first + lane < items.length && D::Above(magnitude) == cut.magnitude) {
          simt::AtomicAdd(histogram + D::Of(magnitude), 1);
        }
      });
    }
    lanes.Sync();
    for (int i = lanes.thread(); i < D::kBins; i += kThreads) {
      if (histogram[i] != 0) simt::AtomicAdd(&job.state->histograms[kLevel][i], histogram[i]);
    }
  }
};

}  // namespace jaxccomp::cuda
