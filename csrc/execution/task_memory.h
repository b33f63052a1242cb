// Temporary memory of tasks: scratch blocks and code blocks. A block is taken when a task starts, and given back when
// the last task that touches it is done.
#pragma once

#include <cstdint>
#include <utility>

#include "common/buffer_pool.h"
#include "common/status.h"
#include "execution/operation.h"
#include "transport/transport_router.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class TaskMemory {
 public:
  explicit TaskMemory(TransportRouter* router) : router_(router) {}

  // Whether the task may take its memory now. If not, parks the task. `arriving_bytes`: size of a receive's message.
  bool Admit(Operation* op, TaskId task, int64_t arriving_bytes);
  // Takes the task's memory.
  Status Prepare(Operation* op, TaskId task, int64_t arriving_bytes);
  // The task no longer uses its memory.
  void TaskDone(Operation* op, const PlannedTask& task);
  // Gives back all memory of the operation.
  void Clear(Operation* op);

  // A buffer for the gathered pieces of a send to another process; null: there is no memory. Prepare has counted it.
  BufferPool::Buffer TakeStaging(int64_t bytes) { return pool_.Take(bytes); }
  void GiveStaging(BufferPool::Buffer staging, int64_t bytes) { pool_.Give(std::move(staging), bytes); }
  // PlannedTask::staged_bytes of a message between processes; 0 within a process, where no copy is needed.
  int64_t StagedBytes(const Operation& op, const PlannedTask& task) const;

  // Gives back unused memory of a block whose code is much shorter than its maximum, so that later chunks need not wait
  // for that memory until the code has been sent.
  void Trim(Operation* op, Operation::Block* block);
  void RecordPeak(Operation* op) { op->budget.RecordPeak(router_->EarlyBytes()); }

 private:
  // Gives the block a buffer, unless it has one. False: there is no memory.
  bool Provide(Operation* op, Operation::Block* block, int64_t bytes);
  void Release(Operation* op, Operation::Block* block);

  TransportRouter* const router_;
  BufferPool pool_;
};

}  // namespace jaxccomp
