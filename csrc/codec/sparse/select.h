// Finds the largest values of a chunk: estimates a threshold from a sample, collects the values that reach
// it in one pass, and selects exactly among these candidates.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/sparse/layout.h"
#include "codec/workspace.h"

namespace jaxccomp::sparse {

// A magnitude, from 1 to `maximum`, that about `wanted` of the chunk's values reach. `spread` is a margin in
// standard deviations: with 3, almost surely at least `wanted` values reach it. Exact for chunks that are
// not longer than the sample.
template <typename Word>
Word GuessThreshold(const std::byte* src, int64_t count, int64_t wanted, double spread, Word maximum,
                    Workspace& workspace);

// The values whose magnitude reaches a threshold, in order. Stored in the workspace until the next call.
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

// The `wanted` largest candidates: all with a magnitude above `magnitude`, and the first `ties` with exactly
// this one. There are at least `wanted` candidates.
template <typename Word>
struct Cut {
  Word magnitude = 0;
  int64_t ties = 0;
};
template <typename Word>
Cut<Word> FindCut(const Candidates<Word>& candidates, int64_t wanted, Workspace& workspace);

}  // namespace jaxccomp::sparse
