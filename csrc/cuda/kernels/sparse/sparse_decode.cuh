// Decoding of the sparse codecs: a CTA puts a tile together in shared memory, zeros and what travels
// of it, and stores it, or adds it to what is there. Every value is written once, and those of a sum
// only where it changes.
//
// Codes are not trusted. Whatever a table says, nothing is read or written beyond the code and the
// tile; each of its parts is checked by one of the CTAs that use it.
#pragma once

#include "codec/random.h"
#include "cuda/kernels/sparse/sparse_tiles.cuh"

namespace jaxccomp::cuda {

// What the first bytes of a code say.
enum CodeKind : uint32_t { kFiniteCode, kNonFiniteCode, kNoCode };

struct TableHead {
  uint32_t kind;   // CodeKind
  uint32_t kept;
};

struct CodeJob {
  const std::byte* code;
  int64_t bytes;
  int64_t count;
  int32_t* status;
};

struct TableJob {
  CodeJob code;
  int64_t number_bytes;     // in front of the table: sparse::kNumberBytes, or 0
  int64_t value_bytes;
  int64_t nonfinite_bytes;
  uint32_t most;            // values that travel; without a number in front exactly so many
  TableHead* head;
  uint32_t* begins;         // of each sub-block's offsets, and their end

  JAXCCOMP_HOST_DEVICE const std::byte* counts() const {
    return code.code + sparse::kFlagBytes + number_bytes;
  }
  JAXCCOMP_HOST_DEVICE const std::byte* offsets() const {
    return counts() + CeilDiv(code.count, sparse::kSubBlock) * 4;
  }
};

// One CTA: the counts of a table. Where they have the right sum, all they place lies in the code; that
// none is more than its sub-block has values follows from their offsets, which ascend.
struct ReadTable {
  using Job = TableJob;
  static constexpr int kSharedWords = 2 * kCtaWarps;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    TableHead head = Head(job);
    if (head.kind == kFiniteCode && ReadCounts(lanes, job) != head.kept) head.kind = kNoCode;
    if (lanes.thread() != 0) return;
    *job.head = head;
    if (head.kind == kNoCode) *job.code.status = 1;
  }

 private:
  static constexpr int kEach = 4;

  JAXCCOMP_HOST_DEVICE static TableHead Head(const Job& job) {
    const std::byte flag = job.code.code[0];
    if (flag == sparse::kNonFinite) {
      return {job.code.bytes == job.nonfinite_bytes ? kNonFiniteCode : kNoCode, 0};
    }
    if (flag != sparse::kFinite) return {kNoCode, 0};
    if (job.number_bytes == 0) return {kFiniteCode, job.most};
    const uint64_t kept = LoadLong(job.code.code + sparse::kFlagBytes);
    if (kept > job.most) return {kNoCode, 0};
    const int64_t bytes = job.nonfinite_bytes + static_cast<int64_t>(kept) * (2 + job.value_bytes);
    return {job.code.bytes == bytes ? kFiniteCode : kNoCode, static_cast<uint32_t>(kept)};
  }

  // Returns their sum.
  JAXCCOMP_DEVICE static uint64_t ReadCounts(Lanes& lanes, const Job& job) {
    const int64_t sub_blocks = CeilDiv(job.code.count, sparse::kSubBlock);
    uint64_t sum = 0;
    JAXCCOMP_NO_UNROLL
    for (int64_t first = 0; first < sub_blocks; first += kEach * kThreads) {
      const int64_t own_first = first + lanes.thread() * kEach;
      uint32_t own[kEach];
      uint64_t of_thread = 0;
      JAXCCOMP_UNROLL
      for (int i = 0; i < kEach; ++i) {
        const int64_t s = own_first + i;
        own[i] = s < sub_blocks ? LoadNumber<4>(job.counts() + s * 4, 1) : 0;
        of_thread += own[i];
      }
      const Prefix prefix =
          PrefixSum<kCtaWarps>(of_thread, reinterpret_cast<uint64_t*>(lanes.shared()));
      uint64_t at = sum + prefix.before;
      JAXCCOMP_UNROLL
      for (int i = 0; i < kEach; ++i) {
        const int64_t s = own_first + i;
        if (s < sub_blocks) job.begins[s] = static_cast<uint32_t>(at);
        at += own[i];
        if (s == sub_blocks - 1) job.begins[sub_blocks] = static_cast<uint32_t>(at);
      }
      sum += prefix.total;
      lanes.Sync();
    }
    return sum;
  }
};

// The tile that a CTA puts together, within the chunk.
struct TileRange {
  int64_t begin;
  int length;
};

// Where values belong by a table. Such classes have: Open, which returns the kind of the code, and
// Scatter, which calls put(place in the tile, word) for each value of T.
struct FromTable {
  using Job = TableJob;

  JAXCCOMP_HOST_DEVICE static CodeKind Open(const Lanes&, const Job& job) {
    return static_cast<CodeKind>(job.head->kind);
  }

  template <typename T, typename F>
  JAXCCOMP_DEVICE static void Scatter(Lanes& lanes, const Job& job, TileRange tile, F&& put) {
    const int64_t sub_block = tile.begin / sparse::kSubBlock;
    const int in_sub_block = static_cast<int>(tile.begin % sparse::kSubBlock);
    const uint32_t begin = job.begins[sub_block];
    const int listed = static_cast<int>(job.begins[sub_block + 1] - begin);
    const std::byte* const offsets = job.offsets() + int64_t{begin} * 2;
    const std::byte* const words =
        job.offsets() + int64_t{job.head->kept} * 2 + int64_t{begin} * Real<T>::kBytes;
    const int alignment = Alignment(offsets), words_alignment = Alignment(words);
    const auto offset = [&](int j) {
      return static_cast<int>(LoadNumber<2>(offsets + int64_t{j} * 2, alignment));
    };
    int* const range = reinterpret_cast<int*>(lanes.shared());
    const int warp = lanes.thread() / kWarp;
    if (warp < 2) {
      const int found = FirstAtLeast(lanes, in_sub_block + warp * tile.length, listed, offset);
      if (lanes.thread() % kWarp == 0) range[warp] = found;
    }
    // The CTAs of the sub-block check as many places each.
    const int length = static_cast<int>(
        ValuesIn(job.code.count, sub_block * sparse::kSubBlock, sparse::kSubBlock));
    const int tiles = (length + kTileValues - 1) / kTileValues;
    const int number = in_sub_block / kTileValues;
    const int share = (listed + tiles - 1) / tiles;
    const int last = (number + 1) * share < listed ? (number + 1) * share : listed;
    bool bad = false;
    for (int j = number * share + lanes.thread(); j < last; j += kThreads) {
      bad |= offset(j) >= length || (j > 0 && offset(j - 1) >= offset(j));
    }
    if (bad) *job.code.status = 1;
    lanes.Sync();
    const int end = range[1];
    for (int j = range[0] + lanes.thread(); j < end; j += kThreads) {
      const int place = offset(j) - in_sub_block;
      if (place < 0 || place >= tile.length) continue;
      put(place, LoadNumber<Real<T>::kBytes>(words + int64_t{j} * Real<T>::kBytes, words_alignment));
    }
  }

 private:
  // By a warp: the first of `length` ascending offsets that is not below `wanted`.
  template <typename F>
  JAXCCOMP_DEVICE static int FirstAtLeast(const Lanes& lanes, int wanted, int length, F&& offset) {
    const int lane = lanes.thread() % kWarp;
    int first = 0;
    while (length > 0) {
      const int step = (length + kWarp - 1) / kWarp, at = lane * step;
      const int below =
          simt::Popcount(lanes.Ballot(at < length && offset(first + at) < wanted));
      if (below == 0) break;
      const int skipped = (below - 1) * step + 1;
      first += skipped;
      length = length - skipped < step - 1 ? length - skipped : step - 1;
    }
    return first;
  }
};

struct DrawnJob {
  CodeJob code;
  uint32_t kept;
};

// One value at random out of each of `kept` equal parts of a chunk.
struct DrawnParts {
  int64_t count;
  uint32_t kept;

  JAXCCOMP_HOST_DEVICE int64_t Begin(int64_t part) const { return part * count / kept; }
  // The part that has a value, and the first one that begins at it or behind it.
  JAXCCOMP_HOST_DEVICE int64_t PartOf(int64_t value) const {
    return ((value + 1) * kept + count - 1) / count - 1;
  }
  JAXCCOMP_HOST_DEVICE static int64_t Place(int64_t begin, int64_t end, uint32_t random) {
    return begin +
           static_cast<int64_t>(uint64_t{random} * static_cast<uint64_t>(end - begin) >> 32);
  }
};

// Where they belong by what the key at the front draws.
struct FromKey {
  using Job = DrawnJob;

  JAXCCOMP_DEVICE static CodeKind Open(const Lanes& lanes, const Job& job) {
    const std::byte flag = job.code.code[0];
    if (flag == sparse::kFinite) return kFiniteCode;
    if (flag == sparse::kNonFinite) return kNonFiniteCode;
    if (lanes.cta() == 0 && lanes.thread() == 0) *job.code.status = 1;
    return kNoCode;
  }

  template <typename T, typename F>
  JAXCCOMP_DEVICE static void Scatter(Lanes& lanes, const Job& job, TileRange tile, F&& put) {
    const std::byte* const at = job.code.code + sparse::kFlagBytes;
    const RandomKey key = {LoadLong(at), LoadNumber<4>(at + 8, 1), LoadNumber<4>(at + 12, 1)};
    const uint64_t first = LoadLong(at + 16);
    const std::byte* const words = at + sparse::kKeyBytes;
    const int alignment = Alignment(words);
    const DrawnParts parts = {job.code.count, job.kept};
    const int64_t from = parts.PartOf(tile.begin);
    const int64_t to = parts.PartOf(tile.begin + tile.length - 1) + 1;
    lanes.Sync();
    // Four parts draw together.
    for (int64_t four = from / 4 + lanes.thread(); four * 4 < to; four += kThreads) {
      const Philox4x32 random = Philox(key, first + static_cast<uint64_t>(four));
      int64_t begin = parts.Begin(four * 4);
      JAXCCOMP_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int64_t part = four * 4 + i, end = parts.Begin(part + 1);
        const int64_t place =
            DrawnParts::Place(begin, end, random[static_cast<size_t>(i)]) - tile.begin;
        if (part < to && place >= 0 && place < tile.length) {
          put(static_cast<int>(place),
              LoadNumber<Real<T>::kBytes>(words + part * Real<T>::kBytes, alignment));
        }
        begin = end;
      }
    }
  }
};

template <typename Places>
struct DecodeSparseJob {
  typename Places::Job places;
  std::byte* values;
  int alignment;
  uint32_t nan;
};

// Values of T as those of Into: stored, where that is T, or added to what is there (kAdd).
template <typename Places, typename T, typename Into, bool kAdd>
struct DecodeSparse {
  using Job = DecodeSparseJob<Places>;
  using Shape = TileShape<Into>;
  static constexpr int kTileAt = 4;   // words
  static constexpr int kSharedWords = kTileAt + kTileValues * Real<T>::kBytes / 4;
  static constexpr int kTileAlignment = Shape::kRun * Real<T>::kBytes;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const CodeJob& code = job.places.code;
    const CodeKind kind = Places::Open(lanes, job.places);
    if (kind == kNoCode) return;
    const TileRange range = {lanes.cta() * kTileValues,
                             static_cast<int>(ValuesIn(code.count, lanes.cta() * kTileValues,
                                                       kTileValues))};
    std::byte* const values = job.values + range.begin * Real<Into>::kBytes;
    auto* const tile = reinterpret_cast<std::byte*>(lanes.shared() + kTileAt);
    cuda::Run<Into, Shape::kRun> before[Shape::kRows] = {};
    JAXCCOMP_UNROLL
    for (int r = 0; kAdd && r < Shape::kRows; ++r) {
      before[r] = LoadRun<Into, Shape::kRun>(values, Shape::First(lanes, r), range.length,
                                             job.alignment);
    }
    cuda::Run<T, Shape::kRun> same;
    JAXCCOMP_UNROLL
    for (int i = 0; i < Shape::kRun; ++i) same.Set(i, kind == kNonFiniteCode ? job.nan : 0);
    JAXCCOMP_UNROLL
    for (int r = 0; r < Shape::kRows; ++r) {
      same.Store(tile + Shape::First(lanes, r) * Real<T>::kBytes, kTileAlignment);
    }
    if (kind == kFiniteCode) {
      Places::template Scatter<T>(lanes, job.places, range, [&](int place, uint32_t word) {
        StoreValue<T>(tile, place, word);
      });
    } else {
      CheckZeros(lanes, code);
    }
    lanes.Sync();
    JAXCCOMP_UNROLL
    for (int r = 0; r < Shape::kRows; ++r) {
      const int first = Shape::First(lanes, r);
      cuda::Run<T, Shape::kRun> decoded;
      decoded.Load(tile + first * Real<T>::kBytes, kTileAlignment);
      if constexpr (kAdd) {
        cuda::Run<Into, Shape::kRun> sums;
        uint32_t changed = 0;
        JAXCCOMP_UNROLL
        for (int i = 0; i < Shape::kRun; ++i) {
          const uint32_t acc = before[r].Get(i);
          const uint32_t sum = Sum<Into>(acc, Real<T>::WidenExactly(decoded.Get(i)));
          changed |= sum ^ acc;
          sums.Set(i, sum);
        }
        if (changed != 0) StoreRun(sums, values, first, range.length, job.alignment);
      } else {
        static_assert(Real<T>::kBytes == Real<Into>::kBytes);
        StoreRun(decoded, values, first, range.length, job.alignment);
      }
    }
  }

 private:
  JAXCCOMP_DEVICE static void CheckZeros(const Lanes& lanes, const CodeJob& code) {
    uint32_t any = 0;
    ForShare(lanes, CeilDiv(code.count, kTileValues), code.bytes, [&](int64_t i) {
      any |= i == 0 ? 0 : static_cast<uint32_t>(code.code[i]);
    });
    if (any != 0) *code.status = 1;
  }
};

}  // namespace jaxccomp::cuda
