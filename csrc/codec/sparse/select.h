// Finding the largest values of a chunk: a threshold out of a sample, one pass that keeps what is
// above it, and an exact choice among those few.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/sparse/layout.h"
#include "codec/workspace.h"

namespace jaxccomp::sparse {

// A magnitude that about `wanted` of the chunk's values reach, at least 1. More of them do, almost
// surely if `spread` is 3, by this number of standard deviations. It is exact for chunks no longer
// than the sample, and at most `most`.
template <typename Word>
Word GuessThreshold(const std::byte* src, int64_t count, int64_t wanted, double spread, Word most,
                    Workspace& workspace);

// The values whose magnitude reaches a threshold, in order; in the workspace until the next call.
template <typename Word>
struct Candidates {
  int64_t count = 0;
  Word largest = 0;                    // magnitude
  const uint32_t* counts = nullptr;    // by sub-block
  const uint16_t* offsets = nullptr;   // in their sub-blocks
  const Word* words = nullptr;
};
template <typename Word>
Candidates<Word> Collect(const std::byte* src, int64_t count, Word threshold,
                         Workspace& workspace);

// The `wanted` largest of at least as many candidates are all those above `magnitude` and the first
// `ties` of those that have it.
template <typename Word>
struct Cut {
  Word magnitude = 0;
  int64_t ties = 0;
};
template <typename Word>
Cut<Word> FindCut(const Candidates<Word>& candidates, int64_t wanted, Workspace& workspace);

}  // namespace jaxccomp::sparse
