#include "execution/compute.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "codec/part.h"
#include "execution/code_block.h"
#include "execution/reference.h"
#include "matching/hash.h"
#include "reduce/identity.h"
#include "transport/pieces.h"

namespace jaxccomp {
namespace {

// The calling thread's workspace.
Workspace& ThreadWorkspace() {
  static thread_local Workspace workspace;
  return workspace;
}

// Calls f(offset, bytes) for each slice until the operation fails, so that a failed operation ends soon. A slice takes
// about a millisecond.
template <typename F>
void InSlices(Operation& op, int64_t bytes, F&& f) {
  constexpr int64_t kSliceBytes = 4 << 20;
  for (int64_t offset = 0; offset < bytes; offset += kSliceBytes) {
    if (std::atomic_ref(op.cancelled).load(std::memory_order_relaxed)) return;
    f(offset, std::min(kSliceBytes, bytes - offset));
  }
}

void Copy(Operation& op, const PlannedTask& task) {
  ForEachRun(op, task.dst, task.sources[0],
             [&](std::byte* to, const std::byte* from, int64_t bytes) {
               if (to == from) return;
               InSlices(op, bytes, [&](int64_t offset, int64_t slice) {
                 CopyBytes(to + offset, from + offset, slice, op.plan->streams);
               });
             });
}

// Whether the task adds an operand to a residual of a wider dtype (collective/residual_in.h).
bool IsWideSum(const Plan& plan, const PlannedTask& task) {
  return task.dst.count > 0 && task.codes[0] < 0 &&
         plan.parts[task.sources[0].first].space == Space::kInput &&
         plan.parts[task.sources[0].first].dtype != plan.parts[task.dst.first].dtype;
}

void AddOperands(Operation& op, const PlannedTask& task) {
  const auto operands = PartsOf(op, task.sources[0]), residuals = PartsOf(op, task.sources[1]);
  for (int32_t i = 0; i < task.dst.count; ++i) {
    const Part& part = op.plan->parts[task.dst.first + i];
    const Part& operand = operands[static_cast<size_t>(i)];
    const std::byte* const from = AddressOf(op, operand);
    const std::byte* const residual = AddressOf(op, residuals[static_cast<size_t>(i)]);
    InSlices(op, part.bytes, [&](int64_t offset, int64_t bytes) {
      const int64_t first = offset / SizeBytes(part.dtype);
      AddOperand(operand.dtype, from + first * SizeBytes(operand.dtype), residual + offset,
                 AddressOf(op, part) + offset, bytes / SizeBytes(part.dtype));
    });
  }
}

Status Merge(Operation& op, const PlannedTask& task) {
  const Plan& plan = *op.plan;
  struct Scratch {
    std::vector<CodeReader> readers;   // by source, for encoded ones
    std::vector<MergeSource> sources;
  };
  Scratch& scratch = ThreadWorkspace().Get<Scratch>();
  scratch.readers.clear();
  for (int32_t code : task.codes) {
    if (code >= 0) scratch.readers.emplace_back(op.code[code]);
  }
  for (int32_t i = 0; i < task.dst.count; ++i) {
    const Part& part = plan.parts[task.dst.first + i];
    scratch.sources.assign(task.sources.size(), {});
    auto reader = scratch.readers.begin();
    for (size_t s = 0; s < task.sources.size(); ++s) {
      if (task.codes[s] < 0) {
        scratch.sources[s].values = AddressOf(op, plan.parts[task.sources[s].first + i]);
        continue;
      }
      Status status = (reader++)->Next(&scratch.sources[s].code);
      if (!status.ok()) return status;
    }
    const auto merge = [&](std::byte* at, int64_t count) {
      return MergePart(CodecFor(plan, part.dtype), part.dtype, plan.reduce_op, task.final ? plan.divisor : 1, at,
                       count, scratch.sources, ThreadWorkspace());
    };
    Status status;
    if (!scratch.readers.empty()) {   // an encoding can only be decoded as a whole
      status = merge(AddressOf(op, part), CountOf(part));
    } else {
      InSlices(op, part.bytes, [&](int64_t offset, int64_t bytes) {
        if (!status.ok()) return;
        status = merge(AddressOf(op, part) + offset, bytes / SizeBytes(part.dtype));
        for (MergeSource& source : scratch.sources) {
          source.values = static_cast<const std::byte*>(source.values) + bytes;
        }
      });
    }
    if (!status.ok()) return status;
  }
  for (const CodeReader& reader : scratch.readers) {
    Status status = reader.Finish();
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

Status Encode(Operation& op, const PlannedTask& task) {
  Operation::Block& block = op.code[task.dst_code];
  std::byte* at = block.buffer.get();
  std::byte* const end = at + block.capacity_bytes;
  CodingContext context(ThreadWorkspace());
  for (const Part& part : PartsOf(op, task.sources[0])) {
    std::byte* const bytes_at = at;
    at += kCodeLengthBytes;
    std::byte* const code = at;
    const Codec* const codec = CodecFor(*op.plan, part.dtype);
    if (codec != nullptr) {
      context.key = KeyOf(op, task, part);
      const bool alike = codec->traits().draws_alike;
      context.first = (alike ? part.offset_in_block : part.offset) / SizeBytes(part.dtype);
      context.ref = ReferenceOf(op, part);
      if (context.ref != nullptr) at = PutChecksum(op, part, at);
    }
    Result<int64_t> encoded = EncodePart(codec, part.dtype, AddressOf(op, part), CountOf(part),
                                         std::span(at, end), context);
    if (!encoded.ok()) return encoded.status();
    at += *encoded;
    const int64_t encoded_bytes = at - code;
    std::memcpy(bytes_at, &encoded_bytes, sizeof(encoded_bytes));
  }
  block.used_bytes = at - block.buffer.get();
  return Status::Ok();
}

Status Decode(const Operation& op, const PlannedTask& task) {
  CodeReader reader(op.code[task.src_code]);
  for (const Part& part : PartsOf(op, task.dst)) {
    std::span<const std::byte> code;
    Status status = reader.Next(&code);
    if (!status.ok()) return status;
    const Codec* const codec = CodecFor(*op.plan, part.dtype);
    CodingContext context(ThreadWorkspace());
    context.ref = codec != nullptr ? ReferenceOf(op, part) : nullptr;
    if (context.ref != nullptr) status = TakeChecksum(op, part, &code);
    if (status.ok()) {
      status = DecodePart(codec, part.dtype, code, AddressOf(op, part), CountOf(part), context);
    }
    if (!status.ok()) return status;
  }
  return reader.Finish();
}

Status Residual(const Operation& op, const PlannedTask& task) {
  const Plan& plan = *op.plan;
  if (task.sources.empty()) {
    for (const Part& part : PartsOf(op, task.dst)) {
      std::memset(AddressOf(op, part), 0, static_cast<size_t>(part.bytes));
    }
    return Status::Ok();
  }
  const auto from = PartsOf(op, task.sources[0]);
  const bool more = task.sources.size() > 2;
  CodeReader reader(op.code[task.codes[1]]);
  for (int32_t i = 0; i < task.dst.count; ++i) {
    const Part& part = plan.parts[task.dst.first + i];
    std::span<const std::byte> code;
    Status status = reader.Next(&code);
    if (!status.ok()) return status;
    std::byte* const dst = AddressOf(op, part);
    status = ResidualPart(CodecFor(plan, part.dtype), part.dtype, dst, more ? dst : nullptr,
                      AddressOf(op, from[static_cast<size_t>(i)]), code, CountOf(part),
                      task.final ? plan.divisor : 1, ThreadWorkspace());
    if (!status.ok()) return status;
  }
  return reader.Finish();
}

// Calls f(from, to, bytes) for each result that starts as a copy of an operand.
template <typename F>
void ForEachOperandCopy(const Operation& op, F&& f) {
  if (!op.plan->starts_from_operands) return;
  const Call& call = op.call;
  // The result of ragged_alltoall starts as its second operand. Other results start as the operand of the same index.
  const size_t first = op.plan->algorithm->collective == Collective::kRaggedAlltoall ? 1 : 0;
  for (size_t i = 0; i < call.outputs.size() && first + i < call.inputs.size(); ++i) {
    const Tensor& from = call.inputs[first + i];
    const Tensor& to = call.outputs[i];
    if (from.data == to.data) continue;
    f(static_cast<const std::byte*>(from.data), static_cast<std::byte*>(to.data), std::min(from.bytes, to.bytes));
  }
}

}  // namespace

int64_t OperandBytes(const Operation& op) {
  int64_t total_bytes = 0;
  ForEachOperandCopy(op, [&](const std::byte*, std::byte*, int64_t bytes) { total_bytes += bytes; });
  return total_bytes;
}

void CopyOperands(Operation& op) {
  ForEachOperandCopy(op, [&](const std::byte* from, std::byte* to, int64_t bytes) {
    InSlices(op, bytes, [&](int64_t offset, int64_t slice) {
      CopyBytes(to + offset, from + offset, slice, op.plan->streams);
    });
  });
}

RandomKey KeyOf(const Operation& op, const PlannedTask& task, const Part& part) {
  const uint64_t operation = Mix(Mix(op.key.sequence, op.key.iteration), op.key.site);
  // The same key for all members, at each hop.
  if (CodecFor(*op.plan, part.dtype)->traits().draws_alike) {
    return {.step = operation, .tensor = static_cast<uint32_t>(part.tensor)};
  }
  return {.step = Mix(operation, task.tag),
          .tensor = static_cast<uint32_t>(part.index),
          .rank = static_cast<uint32_t>(task.peer)};
}

std::byte* AddressOf(const Operation& op, const Part& part) {
  void* base = nullptr;
  switch (part.space) {
    case Space::kInput: base = op.call.inputs[part.index].data; break;
    case Space::kResidualIn: base = op.call.residuals_in[part.index].data; break;
    case Space::kOutput: base = op.call.outputs[part.index].data; break;
    case Space::kScratch: base = op.scratch[part.index].buffer.get(); break;
    case Space::kCode: base = op.code[part.index].buffer.get(); break;
    case Space::kResidual: break;  // a plan has kOutput instead
  }
  return static_cast<std::byte*>(base) + part.offset;
}

Status Compute(Operation& op, const PlannedTask& task) {
  switch (task.kind) {
    case TaskKind::kCopy: Copy(op, task); return Status::Ok();
    case TaskKind::kMerge:
      if (!IsWideSum(*op.plan, task)) return Merge(op, task);
      AddOperands(op, task);
      return Status::Ok();
    case TaskKind::kEncode: return Encode(op, task);
    case TaskKind::kDecode: return Decode(op, task);
    case TaskKind::kResidual: return Residual(op, task);
    case TaskKind::kSend:
    case TaskKind::kRecv:
    case TaskKind::kNumber:
    case TaskKind::kLibrary: break;
  }
  return {Code::kInternal, "a transfer was queued as a computation"};
}

void FillUnwritten(Operation& op) {
  for (const Part& part : op.plan->unwritten) {
    InSlices(op, part.bytes, [&](int64_t offset, int64_t bytes) {
      std::byte* const at = AddressOf(op, part) + offset;
      if (op.plan->fills_identity) {
        FillIdentity(part.dtype, op.plan->reduce_op, at, bytes / SizeBytes(part.dtype));
      } else {
        std::memset(at, 0, static_cast<size_t>(bytes));
      }
    });
  }
}

}  // namespace jaxccomp
