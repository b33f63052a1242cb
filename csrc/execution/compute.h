// The tasks that only touch memory: copy, merge, encode, decode, residual. They run at once, on the thread
// that calls.
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

// The random numbers of a part that `task` encodes: every run, encoding and tensor has its own. Of codecs
// that draw alike, every run and tensor, for all members and encodings.
RandomKey KeyOf(const Operation& op, const PlannedTask& task, const Part& part);

// Calls f(to, from, bytes) for runs of bytes that lie together on both sides. Both are the same
// values, but the tensors may be cut differently.
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

// Sets the results that no task writes.
void FillUnwritten(Operation& op);

// Of a plan that starts_from_operands: the bytes of the operands that the results begin with, 0 if they lie there
// already; and the copy.
int64_t OperandBytes(const Operation& op);
void CopyOperands(Operation& op);

}  // namespace jaxccomp
