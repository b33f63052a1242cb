// Cuts the tensors of a call into parts. Each part is a separate operation of the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "matching/call.h"

namespace jaxccomp {

// The same range of each block of a tensor: `blocks` ranges of `bytes`, the first at `offset`, then every `stride`
// bytes.
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

// Whether an operation can run range by range: its operands have the same size on all ranks, and a range of a result
// depends only on the same range of the operands. Other operations, such as point-to-point messages, are one part.
bool IsCutIntoParts(const OpSpec& spec);

// Cuts a call into parts of about `part_bytes` of a block, in the order of the tensors; the same on all ranks. There
// is at least one part. Parts of large calls are larger, since each part has its own plan in memory.
std::vector<StagePart> CutIntoParts(const OpSpec& spec, const Call& call, int64_t part_bytes);

}  // namespace jaxccomp
