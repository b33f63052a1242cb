// Codes in memory of a device that others reach: which of them lie there, because they travel by a
// descriptor (device/ipc) or because a CUDA-aware MPI takes them from there (device/cuda_aware), and how.
#pragma once

#include <cstdint>
#include <memory>

#include "common/completion.h"
#include "common/status.h"
#include "device/cuda_aware/cuda_aware_mpi.h"
#include "device/ipc/device_ipc.h"
#include "device/ipc/shared_code.h"
#include "device/shared_arena.h"
#include "device_execution/operation_on_device.h"
#include "execution/executor.h"
#include "execution/operation.h"
#include "transport/wire.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class SharedCodes {
 public:
  SharedCodes(Executor* executor, Wire* wire)
      : executor_(*executor),
        wire_(*wire),
        ipc_(wire->process(), &arenas_),
        cuda_aware_(wire->process(), &arenas_) {}

  // How a code may lie there so that all who get it are given it from there: not at all, in pieces (all of
  // them import it), or as it travels.
  enum class Layout { kNone, kPieces, kContiguous };
  // For a code of `bytes`.
  Layout LayoutOf(const Operation& op, int32_t code, int64_t bytes) const;
  // Whether MPI takes it from there for that receiver.
  bool IsSentByMpi(const Operation& op, const PlannedTask& send) const;

  // As DevicePath's.
  bool ProvideForEncode(Operation* op, const PlannedTask& task);
  void ProvideForReceive(Operation* op, TaskId task, Announced announced, int64_t bytes);
  // Room for a copy of a code whose pieces are another process's.
  bool ProvideForCopy(const Operation& op, Layout layout, SharedCode* code);
  // The block has that code from now on.
  void Share(Operation* op, Operation::Block* block, std::unique_ptr<SharedCode> code);

  // Of a block that has such a code, which is not another process's.
  void Drop(Operation* op, Operation::Block* block);

  // The head of a payload on its way between the device's memory and the host's, after an encoding or a
  // receive. False: there is none.
  bool StartHead(Operation* op, TaskId task);

  DeviceIpc& ipc() { return ipc_; }
  CudaAwareMpi& cuda_aware() { return cuda_aware_; }
  SharedArenas& arenas() { return arenas_; }

 private:
  struct HeadCopy;
  void EndHead(HeadCopy* copy, Status status);
  // Whether that member is told a descriptor of that code.
  bool ExportsTo(const Operation& op, int32_t code, int32_t peer) const;
  // `found_bytes`: pinned memory for what the device finds out. False: there is no room for either.
  bool Allocate(const Operation& op, SharedCode* code, int64_t found_bytes);

  Executor& executor_;
  Wire& wire_;
  SharedArenas arenas_;
  DeviceIpc ipc_;
  CudaAwareMpi cuda_aware_;
};

}  // namespace jaxccomp
