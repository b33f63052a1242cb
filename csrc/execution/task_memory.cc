#include "execution/task_memory.h"

#include <cstring>
#include <utility>

namespace jaxccomp {

int64_t TaskMemory::StagedBytes(const Operation& op, const PlannedTask& task) const {
  if (task.staged_bytes == 0) return 0;
  const int process = op.endpoint->communicator->processes[task.peer];
  return process == router_->process() ? 0 : task.staged_bytes;
}

bool TaskMemory::Admit(Operation* op, TaskId task, int64_t arriving_bytes) {
  const PlannedTask& t = op->plan->tasks[task];
  int64_t needed_bytes = StagedBytes(*op, t);
  for (int32_t i : t.touched_scratch) {
    if (op->scratch[i].buffer == nullptr) {
      needed_bytes += BufferPool::TakenBytes(op->plan->scratch_bytes[i]);
    }
  }
  if (t.dst_code >= 0) {
    needed_bytes += BufferPool::TakenBytes(
        t.kind == TaskKind::kRecv ? arriving_bytes : op->plan->code_bytes[t.dst_code]);
  }
  if (op->budget.MayHold(t.lane, needed_bytes)) return true;
  op->budget.Park(task, needed_bytes);
  return false;
}

Status TaskMemory::Prepare(Operation* op, TaskId task, int64_t arriving_bytes) {
  const PlannedTask& t = op->plan->tasks[task];
  bool provided = true;
  for (int32_t i : t.touched_scratch) {
    provided &= Provide(op, &op->scratch[i], op->plan->scratch_bytes[i]);
  }
  if (t.dst_code >= 0) {
    const bool arrives = t.kind == TaskKind::kRecv;
    Operation::Block& block = op->code[t.dst_code];
    provided &= Provide(op, &block, arrives ? arriving_bytes : op->plan->code_bytes[t.dst_code]);
    if (arrives) block.used_bytes = arriving_bytes;
  }
  op->budget.Hold(StagedBytes(*op, t));
  RecordPeak(op);
  if (provided) return Status::Ok();
  return {Code::kUnavailable, "out of memory for the temporary buffers of a collective; a smaller "
                              "chunk_bytes option needs less"};
}

bool TaskMemory::Provide(Operation* op, Operation::Block* block, int64_t bytes) {
  if (block->buffer != nullptr) return true;
  block->buffer = pool_.Take(bytes);
  if (block->buffer == nullptr) return false;
  block->capacity_bytes = bytes;
  op->budget.Hold(BufferPool::TakenBytes(bytes));
  return true;
}

void TaskMemory::Trim(Operation* op, Operation::Block* block) {
  constexpr int64_t kWorthwhile = 4;   // at this ratio the copy takes far less time than the encoding
  if (block->buffer == nullptr || block->used_bytes > block->capacity_bytes / kWorthwhile) return;
  BufferPool::Buffer fitting = pool_.Take(block->used_bytes);
  if (fitting == nullptr) return;
  std::memcpy(fitting.get(), block->buffer.get(), static_cast<size_t>(block->used_bytes));
  op->budget.Release(BufferPool::TakenBytes(block->capacity_bytes));
  pool_.Give(std::exchange(block->buffer, std::move(fitting)), block->capacity_bytes);
  block->capacity_bytes = block->used_bytes;
  op->budget.Hold(BufferPool::TakenBytes(block->capacity_bytes));
}

void TaskMemory::TaskDone(Operation* op, const PlannedTask& task) {
  for (int32_t i : task.touched_scratch) Release(op, &op->scratch[i]);
  for (int32_t i : task.touched_codes) Release(op, &op->code[i]);
  op->budget.Release(StagedBytes(*op, task));
}

void TaskMemory::Release(Operation* op, Operation::Block* block) {
  if (--block->uses_left > 0) return;
  if (block->buffer != nullptr) {
    op->budget.Release(BufferPool::TakenBytes(block->capacity_bytes));
    pool_.Give(std::move(block->buffer), block->capacity_bytes);
    block->buffer = nullptr;
  }
}

void TaskMemory::Clear(Operation* op) {
  for (auto* blocks : {&op->scratch, &op->code}) {
    for (Operation::Block& block : *blocks) {
      if (block.buffer != nullptr) pool_.Give(std::move(block.buffer), block.capacity_bytes);
    }
    blocks->clear();
  }
}

}  // namespace jaxccomp
