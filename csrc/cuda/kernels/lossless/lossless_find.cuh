// The first two kernels of decoding, which find the start of each segment. A segment's headers give its size, and so
// the start of the next one. Segments also have a recognisable form, so that a search can find one in the middle of the
// payload. In the first kernel each thread block searches a segment in its region of the payload, and follows the chain
// of segments to the region's end. The second kernel, a single thread block, joins the chains, starting at the
// payload's first segment; where a region has no chain, or a chain that starts elsewhere, this kernel parses segments
// itself. The result is always as if all segments were parsed in order.
#pragma once

#include "cuda/kernels/lossless/lossless_parse.cuh"

namespace jaxccomp::cuda {

inline constexpr int kRegions = 1024;
inline constexpr int kRegionThreads = 128;
inline constexpr int kMinRegionBytes = 256;

struct Region {
  int64_t start;   // kInvalid: no segment was found
  int64_t exit;    // the offset after the chain's last segment
  int32_t count;
};

JAXCCOMP_DEVICE int64_t RegionBytes(int64_t size) {
  const int64_t bytes = (size - lossless::kChunkHeaderBytes + kRegions - 1) / kRegions;
  return bytes < kMinRegionBytes ? kMinRegionBytes : bytes;
}

// The maximum number of segments in a region's chain.
JAXCCOMP_CONSTEXPR int64_t ChainEntries(int64_t words) {
  const int64_t segments = (words + kSegmentWords - 1) / kSegmentWords;
  return 4 * ((segments + kRegions - 1) / kRegions) + 16;
}

inline constexpr uint32_t kPlanesKind = static_cast<uint32_t>(lossless::SegmentKind::kPlanes);

template <Layout layout>
struct SearchKernel {
  static constexpr int kLaunchThreads = kRegionThreads;
  static constexpr int kMinBlocks = 1;

  Payload payload;
  int64_t words;
  Region* regions;
  int64_t* chains;   // ChainEntries(words) for each region
  int32_t* status;

  JAXCCOMP_DEVICE void operator()(void* memory) const {
    if (Block() == 0 && Thread() == 0) *status = 0;
    const int64_t size = payload.size;
    const int64_t width = RegionBytes(size);
    const int64_t begin = lossless::kChunkHeaderBytes + Block() * width;
    const int64_t end = begin + width < size ? begin + width : size;
    const int64_t start = Find(static_cast<uint32_t*>(memory), begin, end, size);
    if (Thread() != 0) return;
    Region region = {start, start, 0};
    const int64_t entries = ChainEntries(words);
    while (start != kInvalid && region.exit < end && region.count < entries) {
      const int64_t next = ParseSegment<layout>(payload.bytes, region.exit, size,
                                                static_cast<int>(kSegmentWords), 0, nullptr);
      if (next == kInvalid) break;
      chains[Block() * entries + region.count++] = region.exit;
      region.exit = next;
    }
    regions[Block()] = region;
  }

 private:
  // The first plausible segment that begins in [begin, end), or kInvalid. In each step a thread loads several vectors
  // before it checks any.
  JAXCCOMP_DEVICE int64_t Find(uint32_t* found, int64_t begin, int64_t end, int64_t size) const {
    constexpr int kVectors = 4;
    constexpr uint32_t kNone = 0xffffffffu;
    if (Thread() == 0) *found = kNone;
    Sync();
    const auto skew = static_cast<int64_t>(reinterpret_cast<uintptr_t>(payload.bytes + begin) & 15);
    JAXCCOMP_NO_UNROLL
    for (int64_t step = begin - skew; step < end; step += 16 * kVectors * kRegionThreads) {
      Vector vectors[kVectors];
      JAXCCOMP_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const int64_t at = step + 16 * (i * kRegionThreads + static_cast<int64_t>(Thread()));
        const bool whole = at >= 0 && at + 16 <= size;
        vectors[i] = whole ? LoadVector(payload.bytes + at) : LoadEdge(at, size);
      }
      bool mine = false;
      JAXCCOMP_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const int64_t at = step + 16 * (i * kRegionThreads + static_cast<int64_t>(Thread()));
        uint32_t ones = 0;   // mask of bytes equal to kPlanesKind
        JAXCCOMP_UNROLL
        for (int k = 0; k < 4; ++k) {
          const uint32_t other = NotZero(vectors[i].x[k] ^ Splat(kPlanesKind));
          ones |= (TopBits(other) ^ 15) << (4 * k);
        }
        JAXCCOMP_NO_UNROLL
        for (; ones != 0 && !mine; ones &= ones - 1) {
          const int64_t byte = at + TrailingZeros(ones);
          mine = byte >= begin && byte < end && Plausible(byte, size);
          if (mine) AtomicMin(found, static_cast<uint32_t>(byte - begin));
        }
      }
      Sync();
      const uint32_t first = *found;
      Sync();
      if (first != kNone) return begin + first;
    }
    return kInvalid;
  }

  // A vector at the payload's ends, with 0 for bytes outside.
  JAXCCOMP_DEVICE Vector LoadEdge(int64_t at, int64_t size) const {
    Vector v = {};
    if (at + 16 <= 0 || at >= size) return v;
    JAXCCOMP_UNROLL
    for (int i = 0; i < 16; ++i) {
      if (at + i < 0 || at + i >= size) continue;
      v.x[i / 4] |= static_cast<uint32_t>(payload.bytes[at + i]) << (8 * (i % 4));
    }
    return v;
  }

  // Whether a full-length segment with coded planes begins here, followed by another segment or by the end.
  JAXCCOMP_DEVICE bool Plausible(int64_t at, int64_t size) const {
    const int64_t next = ParseSegment<layout>(payload.bytes, at, size,
                                              static_cast<int>(kSegmentWords), 0, nullptr);
    // Reject segments with only raw planes, since arbitrary bytes often look like one.
    const int64_t plain = at + 1 + Cutting<layout>::kPlanes * lossless::kDescriptorBytes +
                          kSegmentWords * Cutting<layout>::kWordBytes;
    if (next == kInvalid || next == plain) return false;
    return next == size || payload.bytes[next] <= 1;
  }
};

inline constexpr int kJoinThreads = kRegions;

struct JoinShared {
  int64_t start[kRegions];
  int64_t exit[kRegions];
  int32_t count[kRegions];
  int32_t base[kRegions];      // the number of the region's first segment, or -1
  uint16_t jump[kRegions];     // the region of the next chain; the region itself if there is none
  int32_t sum[kRegions];       // number of segments from here to the chain in `jump`
  int64_t at;
  int64_t segment;
  uint32_t run;
};

template <Layout layout>
struct JoinKernel {
  static constexpr int kLaunchThreads = kJoinThreads;
  static constexpr int kMinBlocks = 1;

  Payload payload;
  int64_t words;
  const Region* regions;
  int searched;       // number of regions
  const int64_t* chains;
  int64_t* offsets;   // of each segment
  int32_t* status;

  JAXCCOMP_DEVICE void operator()(void* memory) const {
    auto& shared = *static_cast<JoinShared*>(memory);
    const int64_t size = payload.size;
    const int r = static_cast<int>(Thread());
    const Region region = r < searched ? regions[r] : Region{kInvalid, kInvalid, 0};
    shared.start[r] = region.start;
    shared.exit[r] = region.exit;
    shared.count[r] = region.count;
    shared.base[r] = -1;
    const bool header = HeaderIsValid(size);
    if (r == 0) {
      shared.at = header ? lossless::kChunkHeaderBytes : kInvalid;
      shared.segment = 0;
    }
    Sync();
    const int64_t full = words / kSegmentWords;
    const int64_t segments = (words + kSegmentWords - 1) / kSegmentWords;
    // Every iteration advances by at least one segment, or finds the payload invalid.
    for (;;) {
      const int64_t at = shared.at, segment = shared.segment;
      if (at == kInvalid || segment == segments) break;
      const int from = RegionOf(at, size);
      const bool chained = segment < full && shared.start[from] == at && shared.count[from] > 0;
      Sync();
      if (chained) {
        FollowChains(shared, from, segment, full, size);
      } else if (segment < full && at < size && payload.bytes[at] == 0) {
        FollowStored(shared, at, segment, full, size);
      } else {
        if (r == 0) Step(shared, at, segment, size);
      }
      Sync();
    }
    if (r == 0 && shared.at != size) *status = 1;
  }

 private:
  JAXCCOMP_DEVICE bool HeaderIsValid(int64_t size) const {
    if (size < lossless::kChunkHeaderBytes) return false;
    uint64_t header = 0;
    JAXCCOMP_UNROLL
    for (int i = 0; i < 8; ++i) header |= static_cast<uint64_t>(payload.bytes[i]) << (8 * i);
    return header == (lossless::kVersion | static_cast<uint64_t>(layout) << 8 |
                      static_cast<uint64_t>(words) << 32);
  }

  JAXCCOMP_DEVICE static int RegionOf(int64_t at, int64_t size) {
    const int64_t region = (at - lossless::kChunkHeaderBytes) / RegionBytes(size);
    return region < kRegions ? static_cast<int>(region) : kRegions - 1;
  }

  JAXCCOMP_DEVICE void Step(JoinShared& shared, int64_t at, int64_t segment, int64_t size) const {
    const int64_t left = words - segment * kSegmentWords;
    offsets[segment] = at;
    shared.at = ParseSegment<layout>(
        payload.bytes, at, size, static_cast<int>(left < kSegmentWords ? left : kSegmentWords), 0,
        nullptr);
    shared.segment = segment + 1;
  }

  // Follows consecutive stored segments, at most one per thread.
  JAXCCOMP_DEVICE void FollowStored(JoinShared& shared, int64_t at, int64_t segment, int64_t full,
                                    int64_t size) const {
    constexpr int64_t kBytes = 1 + kSegmentWords * Cutting<layout>::kWordBytes;
    if (Thread() == 0) shared.run = kJoinThreads;
    Sync();
    const int64_t mine = at + Thread() * kBytes;
    const bool stored =
        segment + Thread() < full && size - mine >= kBytes && payload.bytes[mine] == 0;
    if (!stored) AtomicMin(&shared.run, Thread());
    Sync();
    const uint32_t run = shared.run;
    if (Thread() < run) offsets[segment + Thread()] = mine;
    if (Thread() == 0) {
      shared.at = run == 0 ? kInvalid : at + run * kBytes;
      shared.segment = segment + run;
    }
  }

  // Follows the chain of region `first`, whose first segment is number `segment`, and all chains that start where the
  // previous chain ends, by pointer jumping: each round doubles the reach.
  JAXCCOMP_DEVICE void FollowChains(JoinShared& shared, int first, int64_t segment, int64_t full,
                                    int64_t size) const {
    const int r = static_cast<int>(Thread());
    const int next = RegionOf(shared.exit[r], size);
    const bool linked = shared.count[r] > 0 && next > r && shared.count[next] > 0 &&
                        shared.start[next] == shared.exit[r];
    shared.jump[r] = static_cast<uint16_t>(linked ? next : r);
    shared.sum[r] = linked ? shared.count[r] : 0;
    shared.base[r] = r == first ? static_cast<int32_t>(segment) : -1;
    Sync();
    for (int reach = 1; reach < kRegions; reach *= 2) {
      const int base = shared.base[r], to = shared.jump[r], sum = shared.sum[r];
      const int further = shared.jump[to], more = shared.sum[to];
      Sync();
      if (base >= 0 && to != r) shared.base[to] = base + sum;
      shared.jump[r] = static_cast<uint16_t>(further);
      shared.sum[r] = sum + (to == r ? 0 : more);
      Sync();
    }
    // Chains assume full segments: cut them after the last full one.
    const int base = shared.base[r];
    if (base >= 0 && base < full) {
      const int64_t* const chain = chains + r * ChainEntries(words);
      const int64_t count = shared.count[r] < full - base ? shared.count[r] : full - base;
      for (int64_t i = 0; i < count; ++i) offsets[base + i] = chain[i];
      const bool cut = count < shared.count[r];
      if (cut || !linked || base + count == full) {
        shared.at = cut ? chain[count] : shared.exit[r];
        shared.segment = base + count;
      }
    }
  }
};

}  // namespace jaxccomp::cuda
