// Tasks that only touch memory: copy, merge, encode, decode, residual. They run at once, on the calling thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec.h"
#include "common/status.h"
#include "execution/operation.h"

namespace jaxccomp {

// Address of a part in the operation's tensors or scratch memory.
std::byte* AddressOf(const Operation& op, const Part& part);

inline std::span<const Part> PartsOf(const Operation& op, PartRange range) {
  return {op.plan->parts.data() + range.first, static_cast<size_t>(range.count)};
}

inline int64_t CountOf(const Part& part) { return part.bytes / SizeBytes(part.dtype); }

// The random key of a part that `task` encodes: different for each run, encoding and tensor. With codecs that draw alike:
// different for each run and tensor, and the same for all members and encodings.
RandomKey KeyOf(const Operation& op, const PlannedTask& task, const Part& part);

// Calls f(to, from, bytes) for each run of bytes that is contiguous on both sides. Both sides have the same values,
// but the tensors may be cut differently.
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

// Runs the task. kEncode sets the code block's used_bytes. If the operation fails meanwhile, copies and merges of
// raw values stop after the current slice; their results are then undefined.
Status Compute(Operation& op, const PlannedTask& task);

// Fills the results that no task writes.
void FillUnwritten(Operation& op);

// For a plan that starts_from_operands: CopyOperands copies OperandBytes bytes of operands into the results, 0 if
// they are the same memory.
int64_t OperandBytes(const Operation& op);
void CopyOperands(Operation& op);

}  // namespace jaxccomp
