#include "runtime/compute.h"

#include <cstring>
#include <span>
#include <vector>

#include "codec/merge.h"
#include "reduce/identity.h"
#include "reduce/lost.h"
#include "reduce/reduce.h"
#include "runtime/reference.h"
#include "transport/pieces.h"

namespace jaxccomp {
namespace {

// A block is coded on the thread that calls.
Workspace& ThreadWorkspace() {
  static thread_local Workspace workspace;
  return workspace;
}

// An encoded block is, per part, the number of encoded bytes (int64) and the bytes; they begin with
// the checksum of the reference, if there is one. Parts whose dtype the codec does not take travel
// as they are.
class CodeReader {
 public:
  CodeReader(const Operation& op, int32_t block)
      : codec_(op.plan->codec.get()),
        rest_(op.code[block].buffer.get(), static_cast<size_t>(op.code[block].used_bytes)) {}

  // Decodes the next part to `dst`.
  Status Next(DType dtype, void* dst, int64_t bytes) {
    std::span<const std::byte> encoded;
    if (!Take(&encoded)) return Broken();
    return Unpack(dtype, encoded, dst, bytes, CodingContext(ThreadWorkspace()));
  }

  // Decodes the next part to its place, against the operation's reference if it has one.
  Status NextResult(const Operation& op, const Part& part) {
    std::span<const std::byte> encoded;
    if (!Take(&encoded)) return Broken();
    CodingContext context(ThreadWorkspace());
    context.ref = Coded(part.dtype) ? ReferenceOf(op, part) : nullptr;
    if (context.ref != nullptr) {
      Status status = TakeChecksum(op, part, &encoded);
      if (!status.ok()) return status;
    }
    return Unpack(part.dtype, encoded, AddressOf(op, part), part.bytes, context);
  }

  // Decodes the next part, of a dtype that is coded, and reduces it into `acc`.
  Status MergeNext(DType dtype, ReduceOp op, DType acc_dtype, void* acc, int64_t bytes) {
    std::span<const std::byte> encoded;
    if (!Take(&encoded)) return Broken();
    return codec_->DecodeMerge(dtype, encoded, op, acc_dtype, acc, bytes / SizeBytes(dtype),
                               CodingContext(ThreadWorkspace()));
  }

  bool Coded(DType dtype) const { return codec_ != nullptr && codec_->Supports(dtype); }

  Status Finish() const { return rest_.empty() ? Status::Ok() : Broken(); }

 private:
  Status Unpack(DType dtype, std::span<const std::byte> encoded, void* dst, int64_t bytes,
                const CodingContext& context) const {
    if (Coded(dtype)) {
      return codec_->Decode(dtype, encoded, dst, bytes / SizeBytes(dtype), context);
    }
    if (static_cast<int64_t>(encoded.size()) != bytes) return Broken();
    std::memcpy(dst, encoded.data(), encoded.size());
    return Status::Ok();
  }

  bool Take(std::span<const std::byte>* encoded) {
    int64_t encoded_bytes = 0;
    if (rest_.size() < sizeof(encoded_bytes)) return false;
    std::memcpy(&encoded_bytes, rest_.data(), sizeof(encoded_bytes));
    rest_ = rest_.subspan(sizeof(encoded_bytes));
    if (encoded_bytes < 0 || encoded_bytes > static_cast<int64_t>(rest_.size())) return false;
    *encoded = rest_.first(static_cast<size_t>(encoded_bytes));
    rest_ = rest_.subspan(static_cast<size_t>(encoded_bytes));
    return true;
  }

  static Status Broken() {
    return {Code::kDataLoss, "an encoded message does not have the length that it should"};
  }

  const Codec* codec_;
  std::span<const std::byte> rest_;
};

std::span<const Part> PartsOf(const Operation& op, PartRange range) {
  return {op.plan->parts.data() + range.first, static_cast<size_t>(range.count)};
}

void Copy(const Operation& op, const PlannedTask& task) {
  const auto from = PartsOf(op, task.sources[0]);
  const auto to = PartsOf(op, task.dst);
  // Both sides are the same values, but the tensors may be cut differently.
  size_t i = 0;
  int64_t used_bytes = 0;
  for (const Part& part : to) {
    std::byte* dst = AddressOf(op, part);
    for (int64_t left = part.bytes; left > 0 && i < from.size();) {
      const int64_t bytes = std::min(left, from[i].bytes - used_bytes);
      const std::byte* src = AddressOf(op, from[i]) + used_bytes;
      if (src != dst) CopyBytes(dst, src, bytes, op.plan->streams);
      dst += bytes;
      left -= bytes;
      used_bytes += bytes;
      if (used_bytes == from[i].bytes) {
        ++i;
        used_bytes = 0;
      }
    }
  }
}

// dst = values op code: two sources commute, so the decoded values need not be anywhere.
Status MergeInto(const Operation& op, const PlannedTask& task, const Part& values, const Part& dst,
                 CodeReader& code) {
  const Plan& plan = *op.plan;
  std::byte* const acc = AddressOf(op, dst);
  const std::byte* const from = AddressOf(op, values);
  if (acc != from) std::memcpy(acc, from, static_cast<size_t>(dst.bytes));
  Status status = code.MergeNext(dst.dtype, plan.reduce_op, dst.dtype, acc, dst.bytes);
  if (!status.ok() || !task.final || plan.divisor == 1) return status;
  const void* sources[] = {acc};
  Reduce(dst.dtype, plan.reduce_op, acc, sources, dst.bytes / SizeBytes(dst.dtype), plan.divisor);
  return status;
}

// dst = all sources of its part number `index`, of a half type: decoded and merged in float, so that
// lossy codes are not rounded before they are added.
Status MergeWide(const Operation& op, const PlannedTask& task, size_t index,
                 std::span<CodeReader> readers) {
  const Plan& plan = *op.plan;
  const Part& dst = plan.parts[task.dst.first + index];
  const int64_t count = dst.bytes / SizeBytes(dst.dtype);
  static thread_local std::vector<float> acc;
  if (std::ssize(acc) < count) acc.resize(static_cast<size_t>(count));
  FillIdentity(DType::kFloat32, plan.reduce_op, acc.data(), count);
  auto reader = readers.begin();
  for (size_t s = 0; s < task.sources.size(); ++s) {
    if (task.codes[s] >= 0) {
      Status status = (reader++)->MergeNext(dst.dtype, plan.reduce_op, DType::kFloat32, acc.data(),
                                            dst.bytes);
      if (!status.ok()) return status;
    } else {
      MergeValues(dst.dtype, AddressOf(op, plan.parts[task.sources[s].first + index]),
                  plan.reduce_op, DType::kFloat32, acc.data(), count);
    }
  }
  if (task.final && plan.divisor > 1) {
    const void* sources[] = {acc.data()};
    Reduce(DType::kFloat32, plan.reduce_op, acc.data(), sources, count, plan.divisor);
  }
  RoundToHalf(dst.dtype, acc.data(), AddressOf(op, dst), count);
  return Status::Ok();
}

Status Merge(const Operation& op, const PlannedTask& task) {
  const Plan& plan = *op.plan;
  const auto to = PartsOf(op, task.dst);
  std::vector<CodeReader> readers;
  for (int32_t code : task.codes) {
    if (code >= 0) readers.emplace_back(op, code);
  }
  static thread_local std::vector<std::byte> decoded;
  std::vector<const void*> sources(task.sources.size());
  for (size_t i = 0; i < to.size(); ++i) {
    const Part& part = to[i];
    if (sources.size() == 2 && readers.size() == 1 && readers[0].Coded(part.dtype) &&
        !IsHalf(part.dtype)) {
      const size_t values = task.codes[0] < 0 ? 0 : 1;
      Status status = MergeInto(op, task, plan.parts[task.sources[values].first + i], part,
                                readers[0]);
      if (!status.ok()) return status;
      continue;
    }
    // What lossless codecs decode is added as raw values are, down to the sign of zeros.
    if (IsHalf(part.dtype) && !readers.empty() && readers[0].Coded(part.dtype) &&
        !plan.codec->traits().lossless) {
      Status status = MergeWide(op, task, i, readers);
      if (!status.ok()) return status;
      continue;
    }
    const auto stride = static_cast<size_t>((part.bytes + 63) / 64 * 64);
    if (decoded.size() < stride * readers.size()) decoded.resize(stride * readers.size());
    size_t reader = 0;
    for (size_t s = 0; s < sources.size(); ++s) {
      if (task.codes[s] >= 0) {
        std::byte* values = decoded.data() + reader * stride;
        Status status = readers[reader++].Next(part.dtype, values, part.bytes);
        if (!status.ok()) return status;
        sources[s] = values;
      } else {
        sources[s] = AddressOf(op, plan.parts[task.sources[s].first + i]);
      }
    }
    Reduce(part.dtype, plan.reduce_op, AddressOf(op, part), sources,
           part.bytes / SizeBytes(part.dtype), task.final ? plan.divisor : 1);
  }
  for (const CodeReader& reader : readers) {
    Status status = reader.Finish();
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

// Every run, encoding and tensor has random numbers of its own.
RandomKey KeyOf(const Operation& op, const PlannedTask& task, const Part& part) {
  return {.step = Mix(Mix(Mix(op.key.sequence, op.key.iteration), op.key.site), task.tag),
          .tensor = static_cast<uint32_t>(part.index),
          .rank = static_cast<uint32_t>(task.peer)};
}

Status Encode(Operation& op, const PlannedTask& task) {
  Operation::Block& block = op.code[task.dst_code];
  std::byte* at = block.buffer.get();
  std::byte* const end = at + block.capacity_bytes;
  CodingContext context(ThreadWorkspace());
  for (const Part& part : PartsOf(op, task.sources[0])) {
    std::byte* const bytes_at = at;
    at += sizeof(int64_t);
    std::byte* const code = at;
    if (op.plan->codec->Supports(part.dtype)) {
      context.key = KeyOf(op, task, part);
      context.first = part.offset / SizeBytes(part.dtype);
      context.ref = ReferenceOf(op, part);
      if (context.ref != nullptr) at = PutChecksum(op, part, at);
      Result<int64_t> encoded =
          op.plan->codec->Encode(part.dtype, AddressOf(op, part),
                                 part.bytes / SizeBytes(part.dtype), std::span(at, end), context);
      if (!encoded.ok()) return encoded.status();
      at += *encoded;
    } else {
      std::memcpy(at, AddressOf(op, part), static_cast<size_t>(part.bytes));
      at += part.bytes;
    }
    const int64_t encoded_bytes = at - code;
    std::memcpy(bytes_at, &encoded_bytes, sizeof(encoded_bytes));
  }
  block.used_bytes = at - block.buffer.get();
  return Status::Ok();
}

Status Decode(const Operation& op, const PlannedTask& task) {
  CodeReader reader(op, task.src_code);
  for (const Part& part : PartsOf(op, task.dst)) {
    Status status = reader.NextResult(op, part);
    if (!status.ok()) return status;
  }
  return reader.Finish();
}

Status Lose(const Operation& op, const PlannedTask& task) {
  const Plan& plan = *op.plan;
  const auto to = PartsOf(op, task.dst);
  const auto from = PartsOf(op, task.sources[0]);
  const bool more = task.sources.size() > 2;
  CodeReader reader(op, task.codes[1]);
  for (size_t i = 0; i < to.size(); ++i) {
    struct OfLost;
    std::byte* const decoded = ThreadWorkspace().Bytes<OfLost>(to[i].bytes);
    Status status = reader.Next(to[i].dtype, decoded, to[i].bytes);
    if (!status.ok()) return status;
    std::byte* const dst = AddressOf(op, to[i]);
    AddLost(to[i].dtype, dst, more ? dst : nullptr, AddressOf(op, from[i]), decoded,
            to[i].bytes / SizeBytes(to[i].dtype), task.final ? plan.divisor : 1);
  }
  return reader.Finish();
}

}  // namespace

std::byte* AddressOf(const Operation& op, const Part& part) {
  void* base = nullptr;
  switch (part.space) {
    case Space::kInput: base = op.call.inputs[part.index].data; break;
    case Space::kOutput: base = op.call.outputs[part.index].data; break;
    case Space::kScratch: base = op.scratch[part.index].buffer.get(); break;
    case Space::kCode: base = op.code[part.index].buffer.get(); break;
    case Space::kLoss: break;  // results, for a plan
  }
  return static_cast<std::byte*>(base) + part.offset;
}

Status Compute(Operation& op, const PlannedTask& task) {
  switch (task.kind) {
    case TaskKind::kCopy: Copy(op, task); return Status::Ok();
    case TaskKind::kMerge: return Merge(op, task);
    case TaskKind::kEncode: return Encode(op, task);
    case TaskKind::kDecode: return Decode(op, task);
    case TaskKind::kLose: return Lose(op, task);
    case TaskKind::kSend:
    case TaskKind::kRecv: break;
  }
  return {Code::kInternal, "a transfer was queued as a computation"};
}

void FillUnwritten(const Operation& op) {
  for (const Part& part : op.plan->unwritten) {
    std::byte* const at = AddressOf(op, part);
    if (op.plan->fills_identity) {
      FillIdentity(part.dtype, op.plan->reduce_op, at, part.bytes / SizeBytes(part.dtype));
    } else {
      std::memset(at, 0, static_cast<size_t>(part.bytes));
    }
  }
}

}  // namespace jaxccomp
