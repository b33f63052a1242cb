#include "device_execution/device_compute.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "device/ipc/descriptor.h"
#include "device_execution/operation_on_device.h"
#include "execution/code_block.h"
#include "execution/compute.h"
#include "execution/reference.h"
#include "reduce/identity.h"

namespace jaxccomp {
namespace {

Device& DeviceOf(const Operation& op) { return *UseOf(op).device; }

Device::CallId CallOf(const Operation& op) { return OnDevice(op).call; }

bool StartCopy(const Operation& op, const PlannedTask& task, Completion* done) {
  std::vector<Device::CopyRun> runs;
  ForEachRun(op, task.dst, task.sources[0],
             [&](std::byte* to, const std::byte* from, int64_t bytes) {
               if (to != from) runs.push_back({to, from, bytes});
             });
  return StartCopies(op, runs, done);
}

// A packed block is the parts, one after the other, as a raw message has them.
bool StartPack(Operation& op, const PlannedTask& task, Completion* done) {
  std::vector<Device::CopyRun> runs;
  Operation::Block& block = op.code[task.dst_code];
  block.used_bytes = 0;
  for (const Part& part : PartsOf(op, task.sources[0])) {
    runs.push_back({block.memory() + block.used_bytes, AddressOf(op, part), part.bytes});
    block.used_bytes += part.bytes;
  }
  return StartCopies(op, runs, done);
}

bool StartUnpack(Operation& op, const PlannedTask& task, Completion* done) {
  std::vector<Device::CopyRun> runs;
  const std::byte* from = op.code[task.src_code].memory();
  if (MergesInPlace(op, task)) {
    op.scratch[op.plan->parts[task.dst.first].index].elsewhere = from;
    return false;
  }
  for (const Part& part : PartsOf(op, task.dst)) {
    runs.push_back({AddressOf(op, part), from, part.bytes});
    from += part.bytes;
  }
  return StartCopies(op, runs, done);
}

// How large a code is, is not known before it is made: each part gets its most, and FinishEncode moves
// them together. Lengths and checksums are written where the block has them.
bool StartEncode(Operation& op, const PlannedTask& task, Completion* done) {
  std::vector<Device::EncodeRun> runs;
  const SharedCode* const shared = SharedIn(op.code[task.dst_code]);
  std::byte* at = op.code[task.dst_code].buffer.get();
  for (const Part& part : PartsOf(op, task.sources[0])) {
    const Codec* const codec = CodecFor(*op.plan, part.dtype);
    const int64_t most_bytes = MostCodeBytes(codec, part.dtype, part.bytes);
    Device::EncodeRun run{.codec = codec,
                          .dtype = part.dtype,
                          .values = AddressOf(op, part),
                          .count = CountOf(part),
                          .code = {at + kCodeLengthBytes, at + most_bytes},
                          .code_bytes = reinterpret_cast<int64_t*>(at),
                          .ref = codec != nullptr ? ReferenceOf(op, part) : nullptr,
                          .ref_checksum = nullptr,
                          .key = KeyOf(op, task, part),
                          .first = part.offset / SizeBytes(part.dtype)};
    if (run.ref != nullptr) {
      run.ref_checksum = run.code.data();
      run.code = run.code.subspan(kReferenceChecksumBytes);
    }
    if (shared != nullptr) {
      const CodePiece& piece = shared->pieces[runs.size()];
      auto* const found = reinterpret_cast<FoundSize*>(shared->found.get()) + runs.size();
      run.code = {shared->memory + piece.offset, static_cast<size_t>(piece.bytes)};
      run.code_bytes = &found->code_bytes;
      if (run.ref != nullptr) run.ref_checksum = reinterpret_cast<std::byte*>(&found->ref_checksum);
    }
    runs.push_back(run);
    at += most_bytes;
  }
  if (runs.empty()) return false;
  DeviceOf(op).Encode(CallOf(op), runs, done);
  return true;
}

Status TooLong() {
  return {Code::kInternal, "the device made a code that is longer than its codec allows"};
}

Status FinishSharedEncode(Operation::Block& block) {
  SharedCode& code = *SharedIn(block);
  const auto* found = reinterpret_cast<const FoundSize*>(code.found.get());
  for (CodePiece& piece : code.pieces) {
    if (found->code_bytes < 0 || found->code_bytes > piece.bytes) return TooLong();
    piece.bytes = found->code_bytes;
    if (code.referenced) piece.ref_checksum = found->ref_checksum;
    ++found;
  }
  block.used_bytes = PayloadBytes(code.pieces, code.packed, code.referenced);
  return Status::Ok();
}

Status FinishEncode(Operation& op, const PlannedTask& task) {
  Operation::Block& block = op.code[task.dst_code];
  if (block.in_pieces != nullptr) return FinishSharedEncode(block);
  std::byte* from = block.buffer.get();
  std::byte* to = from;
  for (const Part& part : PartsOf(op, task.sources[0])) {
    const Codec* const codec = CodecFor(*op.plan, part.dtype);
    const int64_t most_bytes = MostCodeBytes(codec, part.dtype, part.bytes);
    int64_t code_bytes = 0;
    std::memcpy(&code_bytes, from, sizeof(code_bytes));
    if (codec != nullptr && ReferenceOf(op, part) != nullptr) code_bytes += kReferenceChecksumBytes;
    if (code_bytes < 0 || code_bytes > most_bytes - kCodeLengthBytes) {
      return TooLong();
    }
    std::memmove(to + kCodeLengthBytes, from + kCodeLengthBytes, static_cast<size_t>(code_bytes));
    std::memcpy(to, &code_bytes, sizeof(code_bytes));
    to += kCodeLengthBytes + code_bytes;
    from += most_bytes;
  }
  block.used_bytes = to - block.buffer.get();
  return Status::Ok();
}

Result<bool> StartDecode(const Operation& op, const PlannedTask& task, Completion* done) {
  std::vector<Device::DecodeRun> runs;
  CodeReader reader(op.code[task.src_code]);
  for (const Part& part : PartsOf(op, task.dst)) {
    Device::DecodeRun run{.codec = CodecFor(*op.plan, part.dtype),
                          .dtype = part.dtype,
                          .code = {},
                          .values = AddressOf(op, part),
                          .count = CountOf(part),
                          .ref = nullptr,
                          .ref_checksum = 0};
    if (run.codec != nullptr) run.ref = ReferenceOf(op, part);
    Status status = run.ref != nullptr ? reader.NextReferenced(&run.code, &run.ref_checksum)
                                       : reader.Next(&run.code);
    if (!status.ok()) return status;
    runs.push_back(run);
  }
  if (Status status = reader.Finish(); !status.ok()) return status;
  if (runs.empty()) return false;
  DeviceOf(op).Decode(CallOf(op), runs, done);
  return true;
}

Result<bool> StartMerge(const Operation& op, const PlannedTask& task, Completion* done) {
  const Plan& plan = *op.plan;
  const size_t count = task.sources.size();
  std::vector<Device::MergeRun> runs;
  std::vector<MergeSource> sources(static_cast<size_t>(task.dst.count) * count);
  std::vector<CodeReader> readers;
  for (int32_t code : task.codes) {
    if (code >= 0) readers.emplace_back(op.code[code]);
  }
  for (int32_t i = 0; i < task.dst.count; ++i) {
    const Part& part = plan.parts[task.dst.first + i];
    const std::span own = std::span(sources).subspan(static_cast<size_t>(i) * count, count);
    auto reader = readers.begin();
    for (size_t s = 0; s < count; ++s) {
      if (task.codes[s] < 0) {
        own[s].values = AddressOf(op, plan.parts[task.sources[s].first + i]);
        continue;
      }
      Status status = (reader++)->Next(&own[s].code);
      if (!status.ok()) return status;
    }
    runs.push_back({CodecFor(plan, part.dtype), part.dtype, AddressOf(op, part), CountOf(part), own});
  }
  for (const CodeReader& reader : readers) {
    Status status = reader.Finish();
    if (!status.ok()) return status;
  }
  if (runs.empty()) return false;
  DeviceOf(op).Merge(CallOf(op), plan.reduce_op, task.final ? plan.divisor : 1, runs, done);
  return true;
}

Result<bool> StartResidual(const Operation& op, const PlannedTask& task, Completion* done) {
  const Plan& plan = *op.plan;
  std::vector<Device::ResidualRun> runs;
  CodeReader reader(op.code[task.codes[1]]);
  for (int32_t i = 0; i < task.dst.count; ++i) {
    const Part& part = plan.parts[task.dst.first + i];
    Device::ResidualRun run{.codec = CodecFor(plan, part.dtype),
                        .dtype = part.dtype,
                        .to = AddressOf(op, part),
                        .more = task.sources.size() > 2,
                        .values = AddressOf(op, plan.parts[task.sources[0].first + i]),
                        .code = {},
                        .count = CountOf(part)};
    Status status = reader.Next(&run.code);
    if (!status.ok()) return status;
    runs.push_back(run);
  }
  if (Status status = reader.Finish(); !status.ok()) return status;
  if (runs.empty()) return false;
  DeviceOf(op).Residual(CallOf(op), task.final ? plan.divisor : 1, runs, done);
  return true;
}

}  // namespace

bool MergesInPlace(const Operation& op, const PlannedTask& task) {
  if (!task.mergeable || op.code[task.src_code].in_pieces == nullptr) return false;
  // Its exporter may have put it anywhere; scratch memory is aligned for all dtypes.
  const auto address = reinterpret_cast<uintptr_t>(op.code[task.src_code].memory());
  return address % kBlockAlign == 0;
}

Result<bool> StartCompute(Operation& op, const PlannedTask& task, Completion* done) {
  switch (task.kind) {
    case TaskKind::kCopy: return StartCopy(op, task, done);
    case TaskKind::kMerge: return StartMerge(op, task, done);
    case TaskKind::kEncode:
      if (task.packed) return StartPack(op, task, done);
      return StartEncode(op, task, done);
    case TaskKind::kDecode:
      if (task.packed) return StartUnpack(op, task, done);
      return StartDecode(op, task, done);
    case TaskKind::kResidual: return StartResidual(op, task, done);
    case TaskKind::kSend:
    case TaskKind::kRecv:
    case TaskKind::kNumber:
    case TaskKind::kLibrary: break;
  }
  return Status(Code::kInternal, "a transfer was started as a computation");
}

Status FinishCompute(Operation& op, const PlannedTask& task, Status status) {
  if (status.ok() && task.kind == TaskKind::kEncode && !task.packed) return FinishEncode(op, task);
  if (status.code() == Code::kFailedPrecondition && task.kind == TaskKind::kDecode &&
      !op.call.refs.empty()) {
    return OtherReference(op, PartsOf(op, task.dst)[0]);
  }
  return status;
}

bool StartCopies(const Operation& op, std::span<const Device::CopyRun> runs, Completion* done) {
  if (runs.empty()) return false;
  DeviceOf(op).Copy(CallOf(op), runs, done);
  return true;
}

std::vector<Device::CopyRun> OperandCopies(const Operation& op, size_t first) {
  std::vector<Device::CopyRun> runs;
  const auto& inputs = op.call.inputs;
  for (size_t i = 0; i < op.call.outputs.size() && first + i < inputs.size(); ++i) {
    const Tensor& from = inputs[first + i];
    const Tensor& to = op.call.outputs[i];
    const int64_t bytes = std::min(from.bytes, to.bytes);
    if (from.data == to.data || bytes == 0) continue;
    runs.push_back(
        {static_cast<std::byte*>(to.data), static_cast<const std::byte*>(from.data), bytes});
  }
  return runs;
}

bool StartFillUnwritten(const Operation& op, Completion* done) {
  std::vector<Device::FillRun> runs;
  for (const Part& part : op.plan->unwritten) {
    Device::FillRun run{AddressOf(op, part), CountOf(part), SizeBytes(part.dtype), {}};
    if (op.plan->fills_identity) {
      FillIdentity(part.dtype, op.plan->reduce_op, run.element.data(), 1);
    }
    runs.push_back(run);
  }
  if (runs.empty()) return false;
  DeviceOf(op).Fill(CallOf(op), runs, done);
  return true;
}

}  // namespace jaxccomp
