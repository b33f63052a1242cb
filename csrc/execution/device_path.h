// What the executor leaves to others: the tasks of operations on values in a device's memory, and messages
// that lie in such memory. device_execution/ implements it; where it is not used, all values are in the
// host's memory.
#pragma once

#include <cstdint>

#include "common/memory.h"
#include "common/status.h"
#include "execution/operation.h"
#include "transport/transport.h"

namespace jaxccomp {

// All members need the engine's lock. Operations are those with Operation::device, but for Refuses.
class DevicePath {
 public:
  virtual BufferPool* ScratchPool(Operation* op) = 0;
  virtual BufferPool* CodePool(Operation* op) = 0;

  // Whether the task has to wait until the caller's stream has come to the call; it is made ready then.
  virtual bool Defers(Operation* op, TaskId task) = 0;
  // Starts a computation.
  virtual void Start(Operation* op, TaskId task) = 0;
  // A task is over, with that status, as far as the device or the transport is concerned: what has become
  // of it.
  virtual Status End(Operation* op, const PlannedTask& task, Status status) = 0;
  // Starts what an encoding or a receive needs besides. False: nothing.
  virtual bool StartRest(Operation* op, TaskId task) = 0;
  // False while there is, or has just been started, work that the operation's end waits for.
  virtual bool IsSettled(Operation* op) = 0;
  virtual void OnFailed(Operation* op) = 0;

  // Whether the task needs no scratch memory, since the values are read from where another process has
  // them.
  virtual bool ReadsInPlace(const Operation& op, const PlannedTask& task) const = 0;
  // Takes memory that others reach for what the task encodes, or receives. False: it needs a buffer.
  virtual bool ProvideForEncode(Operation* op, const PlannedTask& task) = 0;
  virtual void ProvideForReceive(Operation* op, TaskId task, Announced announced, int64_t bytes) = 0;
  virtual void Drop(Operation* op, Operation::Block* block) = 0;

  // Sends a code that lies in such memory by its descriptor. False: as its bytes, from where it lies.
  virtual bool SendDescriptor(Operation* op, TaskId task, const Header& header) = 0;
  // A descriptor has come (Announced::ipc). Whether the operation has no use for it; the payload comes
  // then.
  virtual bool Refuses(const Operation& op, Announced descriptor) = 0;
  virtual void StartImport(Operation* op, TaskId task, Announced descriptor) = 0;
  // Sends what could not be sent before. True when there was any.
  virtual bool Flush() = 0;
  virtual bool HasUnsent() const = 0;

 protected:
  ~DevicePath() = default;
};

}  // namespace jaxccomp
