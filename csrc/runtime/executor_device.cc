// Operations on values in a device's memory (device/device.h).

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "runtime/device_compute.h"
#include "runtime/device_sizes.h"
#include "runtime/executor.h"
#include "runtime/memory.h"

namespace jaxccomp {

void WholeDone::Done(Status status) { operation->executor->WholeDone(operation, std::move(status)); }

Status Executor::Enter(Operation* op) {
  op->executor = this;
  op->whole.operation = op;
  op->device_call = 0;
  op->device_ready = op->device_filled = false;
  op->computing = 0;
  op->open_tasks = 1;   // until it begins
  op->unready.clear();
  Device* const device = op->call.memory;
  auto known = std::find_if(devices_.begin(), devices_.end(),
                            [&](const auto& use) { return use->device == device; });
  if (known == devices_.end()) {
    known = devices_.insert(known, std::make_unique<DeviceUse>(device));
  }
  op->device = known->get();
  Result<Device::CallId> entered = device->Enter(op->call.stream);
  if (!entered.ok()) return entered.status();
  op->device_call = *entered;
  ++op->device->entered;
  op->device->awaited.push_back(op);
  return Status::Ok();
}

bool Executor::IsEntered(const Device* device) const {
  return std::any_of(devices_.begin(), devices_.end(), [&](const auto& use) {
    return use->device == device && use->entered > 0;
  });
}

bool Executor::AwaitsDevices() const {
  return std::any_of(devices_.begin(), devices_.end(), [](const auto& use) {
    return use->computing > 0 || !use->awaited.empty();
  });
}

bool Executor::PollDevices() {
  bool any = false;
  for (const auto& use : devices_) {
    if (use->computing > 0) any |= use->device->Poll();
    // From the first: each of them may be the last of its communicator to fail.
    for (size_t i = 0; i < use->awaited.size();) {
      Operation* const op = use->awaited[i];
      Result<bool> ready = use->device->IsReady(op->device_call);
      if (ready.ok() && !*ready) {
        ++i;
        continue;
      }
      any = true;
      if (ready.ok()) {
        use->awaited.erase(use->awaited.begin() + static_cast<ptrdiff_t>(i));
        CallerReady(op);
      } else {
        Fail(op, ready.status());
        i = 0;
      }
    }
  }
  return any;
}

bool Executor::AwaitsCaller(const Operation& op, const PlannedTask& task) const {
  if (op.device_ready || task.kind == TaskKind::kRecv) return false;
  // What has come from others can be passed on. A message without values says that the caller is here.
  return task.kind != TaskKind::kSend || task.src_code < 0;
}

void Executor::CallerReady(Operation* op) {
  op->device_ready = true;
  op->last_progress = Operation::Clock::now();
  if (op->sizes != nullptr) {
    const Result<bool> started = StartFetchSizes(op, &op->whole);
    if (!started.ok()) return Fail(op, started.status());
    if (!*started) return listener_->OnSizes(op);
    return CountStarted(op);
  }
  if (op->plan->starts_from_operands && StartCopies(*op, OperandCopies(*op), &op->whole)) {
    CountStarted(op);
  }
  for (TaskId task : std::exchange(op->unready, {})) MakeReady(op, task);
  CheckOver(op);
}

void Executor::CountStarted(Operation* op) {
  ++op->in_flight;
  ++op->computing;
  ++op->device->computing;
}

void Executor::StartOnDevice(Operation* op, TaskId task) {
  Result<bool> started = StartCompute(*op, op->plan->tasks[task], &op->transfers[task]);
  if (!started.ok()) return Fail(op, started.status());
  if (!*started) return TaskDone(op, task);
  CountStarted(op);
}

Status Executor::EndOnDevice(Operation* op, const PlannedTask& task, Status status) {
  if (task.kind == TaskKind::kSend || task.kind == TaskKind::kRecv) return status;
  --op->computing;
  --op->device->computing;
  return op->failed ? status : FinishCompute(*op, task, std::move(status));
}

void Executor::WholeDone(Operation* op, Status status) {
  --op->in_flight;
  --op->computing;
  --op->device->computing;
  op->last_progress = Operation::Clock::now();
  if (op->failed) return CheckOver(op);
  if (!status.ok()) return Fail(op, std::move(status));
  if (op->sizes != nullptr) return listener_->OnSizes(op);
  CheckOver(op);
}

bool Executor::IsSettled(Operation* op) {
  if (op->computing > 0) return false;
  if (op->failed) {
    // Transfers may go on, for as long as a dead peer holds them open: they touch pinned memory of
    // the engine's, and nothing that the caller's stream touches.
    ReturnBorrowed(op);
    LeaveCall(op);
    return true;
  }
  if (!op->device_ready || op->open_tasks > 0 || op->in_flight > 0) return false;
  if (!std::exchange(op->device_filled, true) && StartFillUnwritten(*op, &op->whole)) {
    CountStarted(op);
    return false;
  }
  LeaveCall(op);
  return true;
}

void Executor::LeaveCall(Operation* op) {
  DropSizes(op);
  if (op->device_call == 0) return;
  std::erase(op->device->awaited, op);
  --op->device->entered;
  op->device->device->Leave(std::exchange(op->device_call, 0));
}

bool Executor::DrainDevices(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience) {
  const auto until = Operation::Clock::now() + patience;
  const auto computes = [](const auto& use) { return use->computing > 0; };
  while (std::any_of(devices_.begin(), devices_.end(), computes)) {
    if (Operation::Clock::now() > until) return false;
    if (PollDevices()) continue;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.lock();
  }
  SendReturns();
  return true;
}

void Executor::ForgetDevices() {
  std::set<Device*> stopped;
  for (const auto& use : devices_) {
    if (use->computing > 0) stopped.insert(use->device);
  }
  loans_.Forget(stopped);
  direct_.Forget();
  arenas_.Forget(stopped);
  for (auto& use : devices_) {
    if (use->computing > 0) KeepForEver(std::move(use));
  }
  devices_.clear();
}

}  // namespace jaxccomp
