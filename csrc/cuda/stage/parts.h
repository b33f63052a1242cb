// How the tensors of a call are cut into parts, each of which is an operation of the engine by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "matching/call.h"

namespace jaxccomp {

// The same range of each block of a tensor: `blocks` ranges of `bytes`. The first one begins at `offset`, the next
// `stride` behind it.
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

// Whether an operation can run range by range: its operands have one size on all ranks, and a range of each result
// depends on the same range of the operands. Other operations, such as messages, are one part.
bool IsCutIntoParts(const OpSpec& spec);

// Cuts a call into parts of about `part_bytes` of a block, in the order of the tensors; the same on all ranks. There
// is at least one part. Parts of large calls are larger, as each part has a plan of its own in memory.
std::vector<StagePart> CutIntoParts(const OpSpec& spec, const Call& call, int64_t part_bytes);

}  // namespace jaxccomp
