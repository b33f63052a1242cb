// Messages that MPI takes from, and puts into, memory of devices (runtime/direct_messages.h).

#include <algorithm>
#include <utility>

#include "runtime/code_block.h"
#include "runtime/compute.h"
#include "runtime/executor.h"

namespace jaxccomp {

// The head of a payload on its way between a device's memory and the host's, or, of a code that has
// become too small for memory of a device, all of it.
struct Executor::HeadCopy final : Completion {
  Executor* executor = nullptr;
  Operation* op = nullptr;
  TaskId task = 0;
  BufferPool::Buffer all;   // pinned; null: the head alone
  void Done(Status status) override {
    std::unique_ptr<HeadCopy> self(this);
    executor->EndHead(this, std::move(status));
  }
};

Executor::Lies Executor::HowShared(const Operation& op, int32_t code, int64_t bytes) const {
  Lies lies = Lies::kInPieces;
  for (int32_t peer : op.plan->code_peers[code]) {
    if (LendsTo(op, code, peer)) continue;
    if (!direct_.Takes(op.endpoint->communicator->processes[peer], bytes)) return Lies::kNowhere;
    lies = Lies::kInOne;
  }
  return lies;
}

bool Executor::IsSentDirectly(const Operation& op, const PlannedTask& send) const {
  // Who could borrow it when it was made does still, or is lost.
  return op.code[send.src_code].shared->payload != nullptr &&
         !loans_.LendsTo(op.endpoint->communicator->processes[send.peer]);
}

void Executor::Share(Operation* op, Operation::Block* block, std::unique_ptr<SharedCode> code) {
  block->capacity_bytes = code->block->bytes;
  op->held_bytes += BufferPool::TakenBytes(block->capacity_bytes);
  block->shared = std::move(code);
}

void Executor::ProvideDirect(Operation* op, TaskId task, Announced announced, int64_t bytes) {
  const PlannedTask& t = op->plan->tasks[task];
  if (op->device == nullptr || t.dst_code < 0 || !direct_.Takes(announced.process, bytes) ||
      !wire_->To(announced.process)->PullsIntoDevices(announced)) {
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
  if (block.buffer != nullptr || block.shared != nullptr || !in_one ||
      HowShared(*op, t.dst_code, bytes) == Lies::kNowhere ||
      (referenced && !std::all_of(op->call.outputs.begin(), op->call.outputs.end(), is_coded))) {
    return;
  }
  const int64_t head_bytes = HeadBytes(t.packed, referenced);
  auto code = std::make_unique<SharedCode>();
  code->packed = t.packed;
  code->referenced = referenced;
  code->pieces = PieceInOne(t.packed, bytes - head_bytes);
  if (head_bytes > 0) {
    code->found_bytes = sizeof(FoundSize);
    code->found = op->device->codes.Take(code->found_bytes);
    if (code->found == nullptr) return;
  }
  code->block = arenas_.Take(op->device->device, EndOf(code->pieces));
  if (code->block == nullptr) {
    op->device->codes.Give(std::move(code->found), code->found_bytes);
    return;
  }
  code->memory = code->block->memory();
  PlacePayload(code.get());
  Share(op, &block, std::move(code));
  (*stats_)[op->header.collective].direct_received_bytes += bytes;
}

bool Executor::StartHead(Operation* op, TaskId task) {
  const PlannedTask& t = op->plan->tasks[task];
  const bool encoded = t.kind == TaskKind::kEncode;
  if (t.packed || t.dst_code < 0 || (!encoded && t.kind != TaskKind::kRecv)) return false;
  Operation::Block& block = op->code[t.dst_code];
  if (block.shared == nullptr || block.shared->payload == nullptr) return false;
  SharedCode& code = *block.shared;
  auto copy = std::make_unique<HeadCopy>();
  copy->executor = this;
  copy->op = op;
  copy->task = task;
  std::vector<Device::CopyRun> runs;
  if (!encoded) {
    runs = {{code.found.get(), code.payload, HeadBytes(code.packed, code.referenced)}};
  } else if (block.used_bytes > kMostAlongBytes) {
    runs = {WriteHead(&code)};
  } else {
    // It comes along with its header, through the host's memory.
    copy->all = op->device->codes.Take(block.used_bytes);
    if (copy->all == nullptr) {
      Fail(op, {Code::kUnavailable, "out of pinned memory for an encoded message"});
      return true;
    }
    runs = PayloadCopies(code.memory, code.pieces, code.packed, code.referenced, copy->all.get());
  }
  CountStarted(op);
  // That waits for no caller: what comes from others is passed on before that.
  op->device->device->Copy(Device::kNoCall, runs, copy.release());
  return true;
}

void Executor::EndHead(HeadCopy* copy, Status status) {
  Operation* const op = copy->op;
  const PlannedTask& t = op->plan->tasks[copy->task];
  Operation::Block& block = op->code[t.dst_code];
  --op->in_flight;
  --op->computing;
  --op->device->computing;
  if (status.ok() && t.kind == TaskKind::kRecv) status = ReadHead(block.shared.get(), block.used_bytes);
  if (copy->all != nullptr && (op->failed || !status.ok())) {
    op->device->codes.Give(std::move(copy->all), block.used_bytes);
  }
  if (op->failed) return CheckOver(op);
  if (!status.ok()) return Fail(op, std::move(status));
  op->last_progress = Operation::Clock::now();
  if (copy->all != nullptr) {
    DropShared(op, &block);
    block.buffer = std::move(copy->all);
    block.capacity_bytes = block.used_bytes;
    op->held_bytes += BufferPool::TakenBytes(block.capacity_bytes);
  }
  TaskDone(op, copy->task);
}

}  // namespace jaxccomp
