// The temporary memory of tasks: scratch blocks and code blocks, taken when a task starts and given back
// when the last one that touches them is done.
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

  // Whether the task may take what it needs now; if not, it is parked. `arriving_bytes`: of the message
  // that a receive is for.
  bool Admit(Operation* op, TaskId task, int64_t arriving_bytes);
  // Takes it.
  Status Prepare(Operation* op, TaskId task, int64_t arriving_bytes);
  // The task is done with it.
  void TaskDone(Operation* op, const PlannedTask& task);
  // Gives back all that the operation has.
  void Clear(Operation* op);

  // For all the pieces of memory that a send to another process takes; null: there is no memory. Part of
  // what Prepare has taken.
  BufferPool::Buffer TakeStaging(int64_t bytes) { return pool_.Take(bytes); }
  void GiveStaging(BufferPool::Buffer staging, int64_t bytes) { pool_.Give(std::move(staging), bytes); }
  // Of memory in several pieces a copy is sent to another process.
  int64_t StagedBytes(const Operation& op, const PlannedTask& task) const;

  // Of a code that is much shorter than it might have been: gives back what it does not take, so that later
  // chunks need not wait for its sending.
  void Trim(Operation* op, Operation::Block* block);
  void RecordPeak(Operation* op) { op->budget.RecordPeak(wire_->EarlyBytes()); }

 private:
  // A buffer for a block, unless it has one. False: there is no memory.
  bool Provide(Operation* op, Operation::Block* block, int64_t bytes);
  void Release(Operation* op, Operation::Block* block);

  Wire* const wire_;
  BufferPool pool_;
};

}  // namespace jaxccomp
