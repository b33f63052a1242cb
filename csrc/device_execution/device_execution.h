// Operations on values in a device's memory (device/device.h): they wait for their caller's stream, compute
// on the device, and are completed by polling it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"
#include "device_execution/device_use.h"
#include "device_execution/ipc_transfers.h"
#include "device_execution/shared_codes.h"
#include "device_execution/waiting_calls.h"
#include "execution/device_path.h"
#include "execution/executor.h"
#include "execution/operation.h"
#include "matching/program.h"
#include "transport/wire.h"

namespace jaxccomp {

// All members need the engine's lock.
class DeviceExecution final : public DevicePath {
 public:
  class Listener {
   public:
    // The sizes that an operation's plan waits for are here.
    virtual void OnSizes(Operation* op) = 0;
    // A message that was exported cannot be sent after all.
    virtual void OnExportFailed(const Header& header, const Status& why) = 0;

   protected:
    ~Listener() = default;
  };

  DeviceExecution(Executor* executor, Wire* wire, Listener* listener);

  // The thread that waits for the operation hears by `done`: what is to be called when that is over.
  std::function<void(Status)> SetDone(const Operation& op, const std::function<void(Status)>& done);
  // A new operation's tensors lie on its call's device: joins the caller's stream. `awaits_sizes`: its
  // plan, for that call site, depends on sizes in the device's memory; null for others.
  Status Enter(Operation* op, const CallSite* awaits_sizes);
  // Calls whose callers were let go fail; true when there were any.
  bool FailLetGo();
  // Completes what devices are done with; true when anything happened.
  bool Poll();
  // Whether a caller's stream stands, or will, in front of a call.
  bool IsEntered(const Device* device) const;
  // Whether only Poll can tell that something has ended.
  bool AwaitsDevices() const;
  // Waits for what is under way on devices, for `patience` at most, at the end of the program. False
  // when some still goes on.
  bool Drain(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience);
  // Gives back what is kept of their memory; of a device that still goes on, nothing.
  void Forget();
  // What the whole operation did on the device is over.
  void WholeDone(Operation* op, Status status);
  // That process is not reached any more; below 0: none is.
  void Lose(int process) {
    codes_.ipc().Lose(process);
    codes_.cuda_aware().Lose(process);
  }

  // From its lock on: also without the engine's.
  WaitingCalls& waiting() { return waiting_; }
  DeviceIpc& ipc() { return codes_.ipc(); }
  CudaAwareMpi& cuda_aware() { return codes_.cuda_aware(); }
  IpcTransfers& transfers() { return transfers_; }
  // From now on MPI is called with the device that messages of a CUDA-aware MPI lie on as the thread's
  // current GPU.
  void BindRemote();

  // DevicePath
  BufferPool* ScratchPool(Operation* op) override;
  BufferPool* CodePool(Operation* op) override;
  bool Defers(Operation* op, TaskId task) override;
  void Start(Operation* op, TaskId task) override;
  Status End(Operation* op, const PlannedTask& task, Status status) override;
  bool StartRest(Operation* op, TaskId task) override { return codes_.StartHead(op, task); }
  bool IsSettled(Operation* op) override;
  void OnFailed(Operation* op) override;
  bool ReadsInPlace(const Operation& op, const PlannedTask& task) const override;
  bool ProvideForEncode(Operation* op, const PlannedTask& task) override {
    return codes_.ProvideForEncode(op, task);
  }
  void ProvideForReceive(Operation* op, TaskId task, Announced announced, int64_t bytes) override {
    codes_.ProvideForReceive(op, task, announced, bytes);
  }
  void Drop(Operation* op, Operation::Block* block) override;
  bool SendDescriptor(Operation* op, TaskId task, const Header& header) override {
    return transfers_.SendDescriptor(op, task, header);
  }
  bool Refuses(const Operation& op, Announced descriptor) override {
    return transfers_.Refuses(op, descriptor);
  }
  void StartImport(Operation* op, TaskId task, Announced descriptor) override {
    transfers_.StartImport(op, task, descriptor);
  }
  bool Flush() override { return transfers_.Flush(); }
  bool HasUnsent() const override { return transfers_.HasUnsent(); }

 private:
  DeviceUse* FindUse(const Device* device) const;
  // The caller's stream has come to the operation's call.
  void CallerReady(Operation* op);
  void LeaveCall(Operation* op);

  Executor& executor_;
  Wire& wire_;
  Listener& listener_;
  WaitingCalls waiting_;
  std::vector<std::unique_ptr<DeviceUse>> devices_;
  SharedCodes codes_;
  IpcTransfers transfers_;
  bool bound_ = false;
};

}  // namespace jaxccomp
