// How the tensors of a call are cut into parts, each of which is an operation of the engine by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "matching/call.h"

namespace jaxccomp {

// The same range of each block of a tensor: `blocks` ranges of `bytes`, the first one at `offset`, which are
// `stride` apart.
struct Slice {
  size_t tensor = 0;     // of the call's inputs, or outputs
  int64_t blocks = 1;
  int64_t stride = 0;
  int64_t offset = 0;
  int64_t bytes = 0;
  int64_t rows = 1;      // Tensor::rows of the operation's operand or result
};

struct StagePart {
  std::vector<Slice> inputs, outputs;
};

// Whether an operation on ranges of the blocks gives the ranges of its results: of what has one size on all
// ranks. Others, such as messages, are one part.
bool IsCutIntoParts(const OpSpec& spec);

// Parts of about `part_bytes` of a block, in the order of the tensors; at least one, and not so many that
// their plans would take much memory. The same on all ranks.
std::vector<StagePart> CutIntoParts(const OpSpec& spec, const Call& call, int64_t part_bytes);

}  // namespace jaxccomp
