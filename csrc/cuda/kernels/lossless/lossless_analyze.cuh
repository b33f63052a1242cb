// The first kernel of encoding: chooses the symbols and levels of each segment's planes, exactly like
// codec/lossless/analyze.cc. A thread block handles a segment, each of its warps a plane.
#pragma once

#include "cuda/kernels/lossless/lossless_octet.cuh"

namespace jaxccomp::cuda {

// The coding of a plane in a segment.
struct PlanePlan {
  uint8_t levels;                    // 0: raw
  uint8_t header_bytes;              // on the wire
  uint8_t code_bits[kMaxLevels];
  uint32_t symbols[kMaxLevels];      // of each level, the first symbol in the lowest byte
};
static_assert(sizeof(PlanePlan) == 32);

inline constexpr int kAnalyzeThreads = 128;
inline constexpr int kRuns = 16, kRunWords = 64, kSampleBytes = kRuns * kRunWords;
static_assert(kRuns * kRunWords / 8 == kAnalyzeThreads);

template <Layout layout>
struct AnalyzeShared {
  uint8_t sample[Cutting<layout>::kPlanes][kSampleBytes];
  uint32_t counts[kAnalyzeThreads / 32][256];
};

template <Layout layout>
struct AnalyzeKernel {
  static constexpr int kLaunchThreads = kAnalyzeThreads;
  static constexpr int kMinBlocks = 1;
  const uint8_t* src;
  int64_t words;
  PlanePlan* plans;      // a row of planes for each segment
  uint64_t* state;       // a word for each segment, set to 0 for EncodeKernel's look-back
  uint32_t* ticket;
  bool vectors;

  static constexpr int kGlance = 128, kNoise = 84;   // as in analyze.cc

  JAXCCOMP_DEVICE void operator()(void* memory) const {
    auto& shared = *static_cast<AnalyzeShared<layout>*>(memory);
    const int64_t segment = Block();
    if (segment == 0 && Thread() == 0) *ticket = 0;
    const int64_t left = words - segment * kSegmentWords;
    if (left <= 0) return;
    const int n = static_cast<int>(left < kSegmentWords ? left : kSegmentWords);
    if (Thread() == 0) state[segment] = 0;
    const int sampled = Sample(shared, segment * kSegmentWords, n);
    Sync();
    for (int p = static_cast<int>(Warp()); p < Cutting<layout>::kPlanes;
         p += kAnalyzeThreads / 32) {
      AnalyzePlane(shared.sample[p], shared.counts[Warp()], sampled, WidthOf<layout>(p),
                   plans[segment * Cutting<layout>::kPlanes + p]);
    }
  }

  // Thread t loads octet t % 8 of run t / 8. Returns the number of words of all runs.
  JAXCCOMP_DEVICE int Sample(AnalyzeShared<layout>& shared, int64_t first, int n) const {
    constexpr int kBytes = Cutting<layout>::kWordBytes, kPlanes = Cutting<layout>::kPlanes;
    const int stride = n / kRuns / 64 * 64 < kRunWords ? kRunWords : n / kRuns / 64 * 64;
    int sampled = 0, mine = 0, begin = 0, count = 0;
    for (int run = 0; run < kRuns; ++run) {
      const int at = run * 5 % kRuns * stride;
      const int length = n - at < 0 ? 0 : n - at < kRunWords ? n - at : kRunWords;
      if (run == static_cast<int>(Thread() / 8)) {
        begin = at;
        count = length;
        mine = sampled;
      }
      sampled += length;
    }
    const int o = Thread() & 7;
    if (8 * o >= count) return sampled;
    uint32_t w[Cutting<layout>::kRegisters], planes[kPlanes][2];
    const int64_t offset = (first + begin) * kBytes;
    if (vectors && count == kRunWords) {
      LoadWords<layout, true>(src + offset, o, count, w);
    } else {
      LoadWords<layout, false>(src + offset, o, count, w);
    }
    Cut<layout>(w, planes);
    const uint32_t existing = Existing(o, count);
    JAXCCOMP_UNROLL
    for (int p = 0; p < kPlanes; ++p) {
      JAXCCOMP_UNROLL
      for (int i = 0; i < 8; ++i) {
        if ((existing >> i & 1) == 0) continue;
        shared.sample[p][mine + 8 * o + i] =
            static_cast<uint8_t>(planes[p][i / 4] >> (8 * (i % 4)));
      }
    }
    return sampled;
  }

  // Called by one warp.
  JAXCCOMP_DEVICE static void AnalyzePlane(const uint8_t* sample, uint32_t* counts, int count,
                                           int width, PlanePlan& out) {
    const unsigned lane = Lane();
    JAXCCOMP_UNROLL
    for (int i = 0; i < 8; ++i) counts[32 * i + lane] = 0;
    SyncWarp();
    const int glance = count < kGlance ? count : kGlance;
    for (int i = lane; i < glance; i += 32) AtomicAdd(&counts[sample[i]], 1);
    SyncWarp();
    int distinct = 0;
    JAXCCOMP_UNROLL
    for (int i = 0; i < 8; ++i) distinct += Popcount(Ballot(counts[32 * i + lane] != 0));
    if (distinct > kNoise) {
      if (lane == 0) out = {.levels = 0, .header_bytes = 2, .code_bits = {}, .symbols = {}};
      return;
    }
    for (int i = glance + lane; i < count; i += 32) AtomicAdd(&counts[sample[i]], 1);
    SyncWarp();

    // Sort symbols by count: lane s gets the s-th greatest key.
    uint32_t keys[8];
    JAXCCOMP_UNROLL
    for (int i = 0; i < 8; ++i) {
      const uint32_t byte = 32 * i + lane, times = counts[byte];
      keys[i] = times == 0 ? 0 : times << 8 | (255 - byte);
    }
    uint32_t symbol = 0;
    int kept = 0;
    for (; kept < kMaxSymbols; ++kept) {
      uint32_t maximum = 0;
      JAXCCOMP_UNROLL
      for (int i = 0; i < 8; ++i) maximum = keys[i] > maximum ? keys[i] : maximum;
      const uint32_t key = WarpMax(maximum);
      if (key == 0) break;
      JAXCCOMP_UNROLL
      for (int i = 0; i < 8; ++i) keys[i] = keys[i] == key ? 0 : keys[i];
      if (static_cast<int>(lane) == kept) symbol = key;
    }

    // Dynamic programming over levels: lane u has the state after u symbols have been used.
    uint32_t covered = symbol >> 8;
    JAXCCOMP_UNROLL
    for (unsigned d = 1; d < 32; d *= 2) {
      const uint32_t below = ShuffleUp(covered, d);
      if (lane >= d) covered += below;
    }
    const uint32_t above = ShuffleUp(covered, 1);
    const uint32_t remaining = count - (lane == 0 ? 0 : above);
    uint32_t bits = 8 * remaining, choices = 0;   // choices: two bits per level
    JAXCCOMP_UNROLL
    for (int level = kMaxLevels - 1; level >= 0; --level) {
      const uint32_t one = remaining + Shuffle(bits, lane + 1);
      const uint32_t two = 2 * remaining + Shuffle(bits, lane + 3);
      uint32_t best = one < two ? one : two, choice = one <= two ? 1 : 2;
      if (level > 0 && (static_cast<int>(lane) >= kept || 8 * remaining <= best)) {
        best = 8 * remaining;
        choice = 0;
      }
      bits = best;
      choices |= choice << (2 * level);
    }
    // At most 18 symbols are used: values that the last lanes read from beyond the warp do not matter.
    const uint32_t minimum = Shuffle(bits, 0);
    const bool raw = minimum * 50 > static_cast<uint32_t>(count * width * 49);
    PlanePlan plan = {};
    unsigned used = 0;
    bool ended = raw;
    plan.header_bytes = 2;
    JAXCCOMP_UNROLL
    for (int level = 0; level < kMaxLevels; ++level) {
      const uint32_t choice = Shuffle(choices, used) >> (2 * level) & 3;
      // A level with fewer than three symbols left repeats its first.
      const uint32_t first = ~Shuffle(symbol, used) & 255;
      const uint32_t second = ~Shuffle(symbol, used + 1) & 255;
      const uint32_t third = ~Shuffle(symbol, used + 2) & 255;
      ended |= choice == 0;
      if (ended) continue;
      const unsigned taken = choice == 2 ? 3 : 1;
      const uint32_t middle = static_cast<int>(used) + 1 < kept ? second : first;
      const uint32_t last = static_cast<int>(used) + 2 < kept ? third : first;
      plan.code_bits[level] = static_cast<uint8_t>(choice);
      plan.symbols[level] = taken == 1 ? first : first | middle << 8 | last << 16;
      plan.header_bytes = static_cast<uint8_t>(plan.header_bytes + taken);
      ++plan.levels;
      used += taken;
    }
    if (lane == 0) out = plan;
  }
};

}  // namespace jaxccomp::cuda
