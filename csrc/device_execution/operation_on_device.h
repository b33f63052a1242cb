// What an operation on values in a device's memory has besides (Operation::device).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/completion.h"
#include "common/memory.h"
#include "common/status.h"
#include "device/ipc/shared_code.h"
#include "device_execution/device_use.h"
#include "device_execution/waiting_calls.h"
#include "execution/operation.h"
#include "matching/program.h"

namespace jaxccomp {

class DeviceExecution;

// Of a ragged exchange until it has its plan, which depends on sizes in the device's memory
// (device_sizes.h).
struct AwaitedSizes {
  explicit AwaitedSizes(const CallSite& of) {
    site.spec = of.spec;
    site.codec = of.codec;
  }
  CallSite site;                    // what the plan needs of it: the program may forget its own
  BufferPool::Buffer memory;    // pinned: where the sizes come to
  int64_t memory_bytes = 0;
};

// Told by the device that what it does for the operation as a whole is over.
class WholeDone final : public Completion {
 public:
  DeviceExecution* execution = nullptr;
  Operation* operation = nullptr;
  void Done(Status status) override;
};

struct OperationOnDevice final : DeviceRun {
  DeviceUse* use = nullptr;
  uint64_t call = 0;                   // 0 once it has left
  WaitingCalls::Id waiting = 0;        // as long as it has not left
  bool filled = false;                 // StartFillUnwritten's part is over, or under way
  std::vector<TaskId> deferred;        // tasks that wait until the caller's stream has come
  std::unique_ptr<AwaitedSizes> sizes; // null unless the plan waits for them
  WholeDone whole;
};

inline OperationOnDevice& OnDevice(const Operation& op) {
  return static_cast<OperationOnDevice&>(*op.device);
}
inline DeviceUse& UseOf(const Operation& op) { return *OnDevice(op).use; }

// The code of a block that has one in memory that others reach; null for others.
inline SharedCode* SharedIn(const Operation::Block& block) {
  return static_cast<SharedCode*>(block.in_pieces.get());
}

// A computation on the device has been started, or is over.
inline void CountStarted(Operation* op) {
  ++op->in_flight;
  ++op->device->computing;
  ++UseOf(*op).computing;
}
inline void CountOver(Operation* op) {
  --op->in_flight;
  --op->device->computing;
  --UseOf(*op).computing;
}

}  // namespace jaxccomp
