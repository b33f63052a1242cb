// What temporary memory tasks may hold, and when (collective/memory_limits.h).

#include <algorithm>

#include "runtime/device_compute.h"
#include "runtime/executor.h"

namespace jaxccomp {

bool Executor::MayHold(const Operation& op, TaskId task, int64_t needed_bytes) const {
  const int32_t lane = op.plan->tasks[task].lane;
  return needed_bytes == 0 || lane <= op.first_lane[lane % op.plan->lane_series] ||
         op.held_bytes + needed_bytes <= op.plan->limits.early_bytes;
}

int64_t Executor::StagedBytes(const Operation& op, const PlannedTask& task) const {
  if (task.staged_bytes == 0) return 0;
  const int process = op.endpoint->communicator->processes[task.peer];
  return process == wire_->process() ? 0 : task.staged_bytes;
}

bool Executor::NeedsScratch(const Operation& op, const PlannedTask& task, int32_t block) const {
  return op.scratch[block].lent == nullptr && (op.device == nullptr || !StaysLent(op, task));
}

bool Executor::Admit(Operation* op, TaskId task, int64_t arriving_bytes) {
  const PlannedTask& t = op->plan->tasks[task];
  int64_t needed_bytes = StagedBytes(*op, t);
  for (int32_t i : t.touched_scratch) {
    if (op->scratch[i].buffer == nullptr && NeedsScratch(*op, t, i)) {
      needed_bytes += BufferPool::TakenBytes(op->plan->scratch_bytes[i]);
    }
  }
  if (t.dst_code >= 0) {
    needed_bytes += BufferPool::TakenBytes(
        t.kind == TaskKind::kRecv ? arriving_bytes : op->plan->code_bytes[t.dst_code]);
  }
  if (MayHold(*op, task, needed_bytes)) return true;
  op->parked.push({task, needed_bytes});
  return false;
}

void Executor::Unpark(Operation* op) {
  int64_t promised_bytes = 0;
  std::vector<Operation::Parked> still_parked;
  while (!op->parked.empty()) {
    const Operation::Parked parked = op->parked.top();
    if (MayHold(*op, parked.task, promised_bytes + parked.needed_bytes)) {
      promised_bytes += parked.needed_bytes;
      MakeReady(op, parked.task);
    } else if (op->plan->lane_series == 1) {
      return;   // those behind it are of its lane or higher ones
    } else {
      still_parked.push_back(parked);
    }
    op->parked.pop();
  }
  for (const Operation::Parked& parked : still_parked) op->parked.push(parked);
}

bool Executor::Provide(Operation* op, Operation::Block* block, BufferPool* pool, int64_t bytes) {
  if (block->buffer != nullptr) return true;
  block->buffer = pool->Take(bytes);
  if (block->buffer == nullptr) return false;
  block->capacity_bytes = bytes;
  op->held_bytes += BufferPool::TakenBytes(bytes);
  return true;
}

void Executor::RecordPeak(Operation* op) {
  op->peak_bytes = std::max(op->peak_bytes, op->held_bytes + wire_->EarlyBytes());
}

Status Executor::Prepare(Operation* op, TaskId task, int64_t arriving_bytes) {
  const PlannedTask& t = op->plan->tasks[task];
  bool provided = true;
  for (int32_t i : t.touched_scratch) {
    if (!NeedsScratch(*op, t, i)) continue;
    provided &= Provide(op, &op->scratch[i], ScratchPool(op), op->plan->scratch_bytes[i]);
  }
  if (t.dst_code >= 0) {
    const bool arrives = t.kind == TaskKind::kRecv;
    provided &= op->code[t.dst_code].shared != nullptr ||
                (t.kind == TaskKind::kEncode && ProvideShared(op, t)) ||
                Provide(op, &op->code[t.dst_code], CodePool(op),
                        arrives ? arriving_bytes : op->plan->code_bytes[t.dst_code]);
    if (arrives) op->code[t.dst_code].used_bytes = arriving_bytes;
  }
  op->held_bytes += StagedBytes(*op, t);
  RecordPeak(op);
  if (provided) return Status::Ok();
  return {Code::kUnavailable, "out of memory for the temporary buffers of a collective; a smaller "
                              "chunk_bytes option needs less"};
}

void Executor::Release(Operation* op, Operation::Block* block, BufferPool* pool) {
  if (--block->uses_left > 0) return;
  block->lent = nullptr;
  DropShared(op, block);
  if (block->buffer != nullptr) {
    op->held_bytes -= BufferPool::TakenBytes(block->capacity_bytes);
    pool->Give(std::move(block->buffer), block->capacity_bytes);
    block->buffer = nullptr;
  }
}

}  // namespace jaxccomp
