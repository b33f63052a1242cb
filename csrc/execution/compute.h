// Tasks that only access memory: copy, merge, encode, decode, residual. The calling thread runs them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec.h"
#include "common/status.h"
#include "execution/operation.h"

namespace jaxccomp {

// Address of a part in the operation's tensors or temporary memory.
std::byte* AddressOf(const Operation& op, const Part& part);

inline std::span<const Part> PartsOf(const Operation& op, PartRange range) {
  return {op.plan->parts.data() + range.first, static_cast<size_t>(range.count)};
}

inline int64_t CountOf(const Part& part) { return part.bytes / SizeBytes(part.dtype); }

// The random key of a part that `task` encodes. It differs between runs, encodings and tensors. For codecs with
// draws_alike, it differs between runs and tensors only, and is the same for all members and encodings.
RandomKey KeyOf(const Operation& op, const PlannedTask& task, const Part& part);

// Calls f(to, from, bytes) for each range of bytes that is contiguous in both `dst` and `src`. Both hold the same
// values, but the borders of their parts may differ.
template <typename F>
void ForEachRun(const Operation& op, PartRange dst, PartRange src, F&& f) {
  const auto from = PartsOf(op, src);
  size_t i = 0;
  int64_t used_bytes = 0;
  for (const Part& part : PartsOf(op, dst)) {
    std::byte* to = AddressOf(op, part);
    for (int64_t left = part.bytes; left > 0 && i < from.size();) {
      const int64_t bytes = std::min(left, from[i].bytes - used_bytes);
      f(to, AddressOf(op, from[i]) + used_bytes, bytes);
      to += bytes;
      left -= bytes;
      used_bytes += bytes;
      if (used_bytes == from[i].bytes) {
        ++i;
        used_bytes = 0;
      }
    }
  }
}

// Runs the task. kEncode sets the code block's used_bytes. If the operation fails meanwhile, copies and merges of raw
// values stop early, and their results are undefined.
Status Compute(Operation& op, const PlannedTask& task);

// Fills the results that no task writes.
void FillUnwritten(Operation& op);

// CopyOperands copies operands into the results, if the plan starts_from_operands. OperandBytes: the bytes that it
// copies; operands in the memory of their results are not copied.
int64_t OperandBytes(const Operation& op);
void CopyOperands(Operation& op);

}  // namespace jaxccomp
