#include "codec/sparse/select.h"

#include <algorithm>

#include "codec/sparse/kernels.h"
#include "codec/sparse/words.h"

namespace jaxccomp::sparse {
namespace {

// Keys of workspace buffers.
struct Magnitudes {};
struct CandidateCounts {};
struct CandidateOffsets {};
struct CandidateWords {};

// Returns the `rank`-th largest of `count` magnitudes, and how many values equal to it are among the `rank`
// largest. Overwrites the magnitudes. A radix selection: linear for any input.
template <typename Word>
Cut<Word> SelectLargest(Word* magnitudes, int64_t count, int64_t rank) {
  Word found = 0;
  for (int shift = 8 * sizeof(Word) - 8; shift >= 0; shift -= 8) {
    // Two histograms: neighbours are often equal, and an increment waits for the previous one of the same counter.
    int64_t even[256] = {}, odd[256] = {};
    int64_t i = 0;
    for (; i + 1 < count; i += 2) {
      ++even[magnitudes[i] >> shift & 255];
      ++odd[magnitudes[i + 1] >> shift & 255];
    }
    if (i < count) ++even[magnitudes[i] >> shift & 255];
    int digit = 255;
    while (even[digit] + odd[digit] < rank) {
      rank -= even[digit] + odd[digit];
      --digit;
    }
    found |= static_cast<Word>(static_cast<Word>(digit) << shift);
    int64_t kept = 0;
    for (i = 0; i < count; ++i) {
      const Word magnitude = magnitudes[i];
      magnitudes[kept] = magnitude;
      kept += static_cast<int>(magnitude >> shift & 255) == digit;
    }
    count = kept;
  }
  return {found, rank};
}

// Takes one value of each of kSample equal parts of the chunk, at aperiodic positions.
template <typename Word>
void Sample(const std::byte* src, int64_t count, Word* sample) {
  const int64_t part = count >> kSampleBits, rest = count & (kSample - 1);
  uint32_t place = 0;
  for (int64_t i = 0; i < kSample; ++i) {
    const int64_t begin = i * part + (i * rest >> kSampleBits);
    place += kSampleStep;
    const int64_t at = begin + static_cast<int64_t>(uint64_t{place >> 16} * part >> 16);
    sample[i] = MagnitudeOf(Load<Word>(src + at * sizeof(Word)));
  }
}

}  // namespace

template <typename Word>
Word GuessThreshold(const std::byte* src, int64_t count, int64_t wanted, double spread, Word maximum,
                    Workspace& workspace) {
  auto* sample = reinterpret_cast<Word*>(workspace.Bytes<Magnitudes>(kSample * sizeof(Word)));
  const int64_t rank = SampleRank(count, wanted, spread);
  if (rank == 0) return 1;
  if (count <= kSample) {
    for (int64_t i = 0; i < count; ++i) {
      sample[i] = MagnitudeOf(Load<Word>(src + i * sizeof(Word)));
    }
  } else {
    Sample(src, count, sample);
  }
  return std::clamp<Word>(SelectLargest(sample, std::min(count, kSample), rank).magnitude, 1, maximum);
}

template <typename Word>
Candidates<Word> Collect(const std::byte* src, int64_t count, Word threshold,
                         Workspace& workspace) {
  const Kernels& kernels = BestKernels();
  auto* counts = reinterpret_cast<uint32_t*>(
      workspace.Bytes<CandidateCounts>(SubBlockCount(count) * sizeof(uint32_t)));
  auto* offsets =
      reinterpret_cast<uint16_t*>(workspace.Bytes<CandidateOffsets>(count * sizeof(uint16_t)));
  int64_t found = 0;
  for (int64_t begin = 0; begin < count; begin += kSubBlock) {
    const int64_t here = Above(kernels, src + begin * sizeof(Word),
                               std::min(kSubBlock, count - begin), threshold, offsets + found);
    counts[begin / kSubBlock] = static_cast<uint32_t>(here);
    found += here;
  }
  auto* words = reinterpret_cast<Word*>(workspace.Bytes<CandidateWords>(found * sizeof(Word)));
  Word largest = 0;
  int64_t j = 0;
  for (int64_t begin = 0; begin < count; begin += kSubBlock) {
    const std::byte* block = src + begin * sizeof(Word);
    for (const int64_t end = j + counts[begin / kSubBlock]; j < end; ++j) {
      words[j] = Load<Word>(block + offsets[j] * sizeof(Word));
      largest = std::max(largest, MagnitudeOf(words[j]));
    }
  }
  return {found, largest, counts, offsets, words};
}

template <typename Word>
Cut<Word> FindCut(const Candidates<Word>& candidates, int64_t wanted, Workspace& workspace) {
  const int64_t count = candidates.count;
  auto* magnitudes = reinterpret_cast<Word*>(workspace.Bytes<Magnitudes>(count * sizeof(Word)));
  for (int64_t i = 0; i < count; ++i) magnitudes[i] = MagnitudeOf(candidates.words[i]);
  return SelectLargest(magnitudes, count, wanted);
}

#define JAXCCOMP_INSTANTIATE(Word)                                                               \
  template Word GuessThreshold(const std::byte*, int64_t, int64_t, double, Word, Workspace&);    \
  template Candidates<Word> Collect(const std::byte*, int64_t, Word, Workspace&);                \
  template Cut<Word> FindCut(const Candidates<Word>&, int64_t, Workspace&);
JAXCCOMP_INSTANTIATE(uint16_t)
JAXCCOMP_INSTANTIATE(uint32_t)
JAXCCOMP_INSTANTIATE(uint64_t)
#undef JAXCCOMP_INSTANTIATE

}  // namespace jaxccomp::sparse
