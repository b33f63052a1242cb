// Temporary memory of tasks: scratch blocks and code blocks. A block is taken when a task starts, and given back when
// the last task that touches it is done.
#pragma once

#include <cstdint>
#include <utility>

#include "common/buffer_pool.h"
#include "common/status.h"
#include "execution/operation.h"
#include "transport/wire.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class TaskMemory {
 public:
  explicit TaskMemory(Wire* wire) : wire_(wire) {}

  // Whether the task may take its memory now; otherwise it is parked. `arriving_bytes`: size of the message that a
  // receive is for.
  bool Admit(Operation* op, TaskId task, int64_t arriving_bytes);
  // Takes the task's memory.
  Status Prepare(Operation* op, TaskId task, int64_t arriving_bytes);
  // The task no longer uses its memory.
  void TaskDone(Operation* op, const PlannedTask& task);
  // Gives back all memory of the operation.
  void Clear(Operation* op);

  // Memory for all pieces of a send to another process, which Prepare has counted; null: there is no memory.
  BufferPool::Buffer TakeStaging(int64_t bytes) { return pool_.Take(bytes); }
  void GiveStaging(BufferPool::Buffer staging, int64_t bytes) { pool_.Give(std::move(staging), bytes); }
  // Size of the copy that is sent to another process if memory is in several pieces.
  int64_t StagedBytes(const Operation& op, const PlannedTask& task) const;

  // Gives back the unused memory of a much shorter code, so that later chunks need not wait until it has been sent.
  void Trim(Operation* op, Operation::Block* block);
  void RecordPeak(Operation* op) { op->budget.RecordPeak(wire_->EarlyBytes()); }

 private:
  // Gives the block a buffer, unless it has one. False: there is no memory.
  bool Provide(Operation* op, Operation::Block* block, int64_t bytes);
  void Release(Operation* op, Operation::Block* block);

  Wire* const wire_;
  BufferPool pool_;
};

}  // namespace jaxccomp
