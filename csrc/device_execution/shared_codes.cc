#include "device_execution/shared_codes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "execution/code_block.h"
#include "execution/compute.h"

namespace jaxccomp {

// The head of a payload, or, of a code that has become too small for MPI to take it from a device, all of
// it.
struct SharedCodes::HeadCopy final : Completion {
  SharedCodes* codes = nullptr;
  Operation* op = nullptr;
  TaskId task = 0;
  BufferPool::Buffer all;   // pinned; null: the head alone
  void Done(Status status) override {
    std::unique_ptr<HeadCopy> self(this);
    codes->EndHead(this, std::move(status));
  }
};

bool SharedCodes::ExportsTo(const Operation& op, int32_t code, int32_t peer) const {
  if (ipc_.least_bytes() <= 0 || op.plan->code_bytes[code] < ipc_.least_bytes() ||
      !ipc_.ExportsTo(op.endpoint->communicator->processes[peer])) {
    return false;
  }
  Header header = op.header;
  header.destination = peer;
  return !ipc_.IsRefused(header);
}

SharedCodes::Layout SharedCodes::LayoutOf(const Operation& op, int32_t code, int64_t bytes) const {
  Layout layout = Layout::kPieces;
  for (int32_t peer : op.plan->code_peers[code]) {
    if (ExportsTo(op, code, peer)) continue;
    const int process = op.endpoint->communicator->processes[peer];
    if (!cuda_aware_.Takes(process, bytes)) return Layout::kNone;
    layout = Layout::kContiguous;
  }
  return layout;
}

bool SharedCodes::IsSentByMpi(const Operation& op, const PlannedTask& send) const {
  // Who could import it when it was made does still, or is lost.
  return op.code[send.src_code].in_pieces->payload != nullptr &&
         !ipc_.ExportsTo(op.endpoint->communicator->processes[send.peer]);
}

void SharedCodes::Share(Operation* op, Operation::Block* block, std::unique_ptr<SharedCode> code) {
  block->capacity_bytes = code->block->bytes;
  op->budget.Hold(BufferPool::TakenBytes(block->capacity_bytes));
  block->in_pieces = std::move(code);
}

void SharedCodes::Drop(Operation* op, Operation::Block* block) {
  const std::unique_ptr<CodeInPieces> owner = std::move(block->in_pieces);
  SharedCode& code = static_cast<SharedCode&>(*owner);
  if (code.found != nullptr) UseOf(*op).codes.Give(std::move(code.found), code.found_bytes);
  op->budget.Release(BufferPool::TakenBytes(block->capacity_bytes));
}

bool SharedCodes::Allocate(const Operation& op, SharedCode* code, int64_t found_bytes) {
  BufferPool& pinned = UseOf(op).codes;
  if (found_bytes > 0) {
    code->found_bytes = found_bytes;
    code->found = pinned.Take(found_bytes);
    if (code->found == nullptr) return false;
  }
  code->block = arenas_.Take(UseOf(op).device, EndOf(code->pieces));
  if (code->block == nullptr) {
    if (code->found != nullptr) pinned.Give(std::move(code->found), code->found_bytes);
    return false;
  }
  code->memory = code->block->memory();
  return true;
}

bool SharedCodes::ProvideForEncode(Operation* op, const PlannedTask& task) {
  Operation::Block& block = op->code[task.dst_code];
  const int64_t most_bytes = op->plan->code_bytes[task.dst_code];
  const auto parts = PartsOf(*op, task.sources[0]);
  if (block.buffer != nullptr || parts.empty() || parts.size() > IpcDescriptor::kMostPieces) {
    return false;
  }
  // What the rank sends to itself is copied by the CPU.
  const auto& peers = op->plan->code_peers[task.dst_code];
  if (peers.empty() || std::ranges::find(peers, op->endpoint->member) != peers.end()) return false;
  const Layout layout = LayoutOf(*op, task.dst_code, most_bytes);
  if (layout == Layout::kNone ||
      (layout == Layout::kContiguous && !task.packed && parts.size() > 1)) {
    return false;
  }
  auto code = std::make_unique<SharedCode>();
  code->packed = task.packed;
  code->referenced = !task.packed && !op->call.refs.empty();
  if (task.packed) {
    code->pieces = PieceInOne(/*packed=*/true, most_bytes);
  } else {
    for (const Part& part : parts) {
      const Codec* const codec = CodecFor(*op->plan, part.dtype);
      // References are those of what has a codec: blocks that mix both stay as they are.
      if (code->referenced && codec == nullptr) return false;
      const int64_t code_bytes = MostCodeBytes(codec, part.dtype, part.bytes);
      if (layout == Layout::kContiguous) code->pieces = PieceInOne(/*packed=*/false, code_bytes);
      else code->pieces.push_back({EndOf(code->pieces), code_bytes});
    }
  }
  const auto found_bytes = static_cast<int64_t>(parts.size() * sizeof(FoundSize));
  if (!Allocate(*op, code.get(), task.packed ? 0 : found_bytes)) return false;
  if (layout == Layout::kContiguous) PlacePayload(code.get());
  Share(op, &block, std::move(code));
  return true;
}

void SharedCodes::ProvideForReceive(Operation* op, TaskId task, Announced announced, int64_t bytes) {
  const PlannedTask& t = op->plan->tasks[task];
  if (t.dst_code < 0 || !cuda_aware_.Takes(announced.process, bytes) ||
      !wire_.To(announced.process)->PullsIntoDevices(announced)) {
    return;
  }
  Operation::Block& block = op->code[t.dst_code];
  const bool referenced = !t.packed && !op->call.refs.empty();
  const auto is_coded = [&](const Tensor& tensor) {
    return CodecFor(*op->plan, tensor.dtype) != nullptr;
  };
  // Where codes begin is not known before their lengths are, which lie between them, as checksums do
  // where there is a codec.
  const bool in_one = t.packed || op->plan->code_parts[t.dst_code] == 1;
  if (block.buffer != nullptr || block.in_pieces != nullptr || !in_one ||
      LayoutOf(*op, t.dst_code, bytes) == Layout::kNone ||
      (referenced && !std::all_of(op->call.outputs.begin(), op->call.outputs.end(), is_coded))) {
    return;
  }
  const int64_t head_bytes = HeadBytes(t.packed, referenced);
  auto code = std::make_unique<SharedCode>();
  code->packed = t.packed;
  code->referenced = referenced;
  code->pieces = PieceInOne(t.packed, bytes - head_bytes);
  if (!Allocate(*op, code.get(), head_bytes > 0 ? sizeof(FoundSize) : 0)) return;
  PlacePayload(code.get());
  Share(op, &block, std::move(code));
  executor_.StatsOf(op->header).cuda_aware_received_bytes += bytes;
}

bool SharedCodes::ProvideForCopy(const Operation& op, Layout layout, SharedCode* code) {
  if (layout == Layout::kNone || (layout == Layout::kContiguous && code->pieces.size() != 1)) {
    return false;
  }
  if (layout == Layout::kContiguous && !code->packed) {
    code->pieces[0].offset = PieceInOne(/*packed=*/false, 0)[0].offset;
    return Allocate(op, code, sizeof(FoundSize));
  }
  int64_t bytes = 0;
  for (CodePiece& piece : code->pieces) {
    piece.offset = bytes;
    bytes += RoundUpPiece(piece.bytes);
  }
  return Allocate(op, code, 0);
}

bool SharedCodes::StartHead(Operation* op, TaskId task) {
  const PlannedTask& t = op->plan->tasks[task];
  const bool encoded = t.kind == TaskKind::kEncode;
  if (t.packed || t.dst_code < 0 || (!encoded && t.kind != TaskKind::kRecv)) return false;
  Operation::Block& block = op->code[t.dst_code];
  SharedCode* const code = SharedIn(block);
  if (code == nullptr || code->payload == nullptr) return false;
  auto copy = std::make_unique<HeadCopy>();
  copy->codes = this;
  copy->op = op;
  copy->task = task;
  std::vector<Device::CopyRun> runs;
  if (!encoded) {
    runs = {{code->found.get(), code->payload, HeadBytes(code->packed, code->referenced)}};
  } else if (block.used_bytes > kMostAlongBytes) {
    runs = {WriteHead(code)};
  } else {
    // It comes along with its header, through the host's memory.
    copy->all = UseOf(*op).codes.Take(block.used_bytes);
    if (copy->all == nullptr) {
      executor_.Fail(op, {Code::kUnavailable, "out of pinned memory for an encoded message"});
      return true;
    }
    runs = PayloadCopies(code->memory, code->pieces, code->packed, code->referenced,
                         copy->all.get());
  }
  CountStarted(op);
  // That waits for no caller: what comes from others is passed on before that.
  UseOf(*op).device->Copy(Device::kNoCall, runs, copy.release());
  return true;
}

void SharedCodes::EndHead(HeadCopy* copy, Status status) {
  Operation* const op = copy->op;
  const PlannedTask& t = op->plan->tasks[copy->task];
  Operation::Block& block = op->code[t.dst_code];
  CountOver(op);
  if (status.ok() && t.kind == TaskKind::kRecv) status = ReadHead(SharedIn(block), block.used_bytes);
  if (copy->all != nullptr && (op->failed || !status.ok())) {
    UseOf(*op).codes.Give(std::move(copy->all), block.used_bytes);
  }
  if (op->failed) return executor_.CheckOver(op);
  if (!status.ok()) return executor_.Fail(op, std::move(status));
  op->last_progress = Operation::Clock::now();
  if (copy->all != nullptr) {
    Drop(op, &block);
    block.buffer = std::move(copy->all);
    block.capacity_bytes = block.used_bytes;
    op->budget.Hold(BufferPool::TakenBytes(block.capacity_bytes));
  }
  executor_.TaskDone(op, copy->task);
}

}  // namespace jaxccomp
