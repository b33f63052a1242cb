#include "device_execution/device_execution.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "common/memory.h"
#include "device/cuda_aware/bound_transport.h"
#include "device_execution/device_compute.h"
#include "device_execution/device_sizes.h"
#include "device_execution/operation_on_device.h"

namespace jaxccomp {
namespace {

// Codes are the engine's memory. All else may be the caller's.
bool WritesForCaller(const PlannedTask& task) { return task.kind != TaskKind::kEncode; }

}  // namespace

void WholeDone::Done(Status status) { execution->WholeDone(operation, std::move(status)); }

DeviceExecution::DeviceExecution(Executor* executor, Wire* wire, Listener* listener)
    : executor_(*executor),
      wire_(*wire),
      listener_(*listener),
      codes_(executor, wire),
      transfers_(
          executor, wire, &codes_, [this](const Device* device) { return FindUse(device); },
          [this](const Header& header, const Status& why) { listener_.OnExportFailed(header, why); }) {
  executor_.SetDevicePath(this);
}

DeviceUse* DeviceExecution::FindUse(const Device* device) const {
  const auto known = std::find_if(devices_.begin(), devices_.end(),
                                  [&](const auto& use) { return use->device == device; });
  return known == devices_.end() ? nullptr : known->get();
}

Status DeviceExecution::Enter(Operation* op, const CallSite* awaits_sizes) {
  Device* const device = op->call.memory;
  auto run = std::make_unique<OperationOnDevice>();
  run->whole.execution = this;
  run->whole.operation = op;
  if (awaits_sizes != nullptr) {
    run->awaits_sizes = true;
    run->sizes = std::make_unique<AwaitedSizes>(*awaits_sizes);
  }
  run->use = FindUse(device);
  if (run->use == nullptr) {
    run->use = devices_.emplace_back(std::make_unique<DeviceUse>(device)).get();
  }
  op->executor = &executor_;
  op->open_tasks = 1;   // until it begins
  op->device = std::move(run);
  const WaitingCalls::Id waiting = OnDevice(*op).waiting = waiting_.Add(op, device);
  Result<Device::CallId> entered = device->Enter(op->call.stream, !op->call.host_waits);
  if (!entered.ok()) return entered.status();
  OnDevice(*op).call = *entered;
  waiting_.SetEntered(waiting, *entered);
  ++UseOf(*op).entered;
  UseOf(*op).awaited.push_back(op);
  return Status::Ok();
}

bool DeviceExecution::IsEntered(const Device* device) const {
  const DeviceUse* const use = FindUse(device);
  return use != nullptr && use->entered > 0;
}

bool DeviceExecution::AwaitsDevices() const {
  return std::any_of(devices_.begin(), devices_.end(), [](const auto& use) {
    return use->computing > 0 || !use->awaited.empty();
  });
}

std::function<void(Status)> DeviceExecution::SetDone(const Operation& op,
                                                    const std::function<void(Status)>& done) {
  return waiting_.SetDone(OnDevice(op).waiting, done);
}

bool DeviceExecution::FailLetGo() {
  bool any = false;
  while (true) {
    auto [op, why] = waiting_.NextLetGo();
    if (op == nullptr) return any;
    executor_.Fail(op, std::move(why));
    any = true;
  }
}

bool DeviceExecution::Poll() {
  bool any = FailLetGo();
  for (const auto& use : devices_) {
    if (use->computing > 0) any |= use->device->Poll();
    // From the first: each of them may be the last of its communicator to fail.
    for (size_t i = 0; i < use->awaited.size();) {
      Operation* const op = use->awaited[i];
      Result<bool> ready = use->device->IsReady(OnDevice(*op).call);
      if (ready.ok() && !*ready) {
        ++i;
        continue;
      }
      any = true;
      if (ready.ok()) {
        use->awaited.erase(use->awaited.begin() + static_cast<ptrdiff_t>(i));
        CallerReady(op);
      } else {
        executor_.Fail(op, ready.status());
        i = 0;
      }
    }
  }
  return any;
}

bool DeviceExecution::Drain(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience) {
  const auto until = Operation::Clock::now() + patience;
  const auto computes = [](const auto& use) { return use->computing > 0; };
  while (std::any_of(devices_.begin(), devices_.end(), computes)) {
    if (Operation::Clock::now() > until) return false;
    if (Poll()) continue;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.lock();
  }
  Flush();
  return true;
}

void DeviceExecution::Forget() {
  std::set<Device*> stopped;
  for (const auto& use : devices_) {
    if (use->computing > 0) stopped.insert(use->device);
  }
  codes_.ipc().Forget(stopped);
  codes_.cuda_aware().Forget();
  codes_.arenas().Forget(stopped);
  for (auto& use : devices_) {
    if (use->computing > 0) KeepForEver(std::move(use));
  }
  devices_.clear();
}

void DeviceExecution::BindRemote() {
  if (!codes_.cuda_aware().IsUsed() || std::exchange(bound_, true)) return;
  wire_.SetRemote(
      std::make_unique<BoundTransport>(wire_.TakeRemote(), codes_.cuda_aware().device()));
}

// ---- An operation's way ------------------------------------------------------------------

BufferPool* DeviceExecution::ScratchPool(Operation* op) { return &UseOf(*op).values; }

BufferPool* DeviceExecution::CodePool(Operation* op) { return &UseOf(*op).codes; }

bool DeviceExecution::Defers(Operation* op, TaskId task) {
  const PlannedTask& t = op->plan->tasks[task];
  if (op->device->ready || t.kind == TaskKind::kRecv) return false;
  // What has come from others can be passed on. A message without values says that the caller is here.
  if (t.kind == TaskKind::kSend && t.src_code >= 0) return false;
  OnDevice(*op).deferred.push_back(task);
  return true;
}

void DeviceExecution::CallerReady(Operation* op) {
  OperationOnDevice& run = OnDevice(*op);
  run.ready = true;
  op->last_progress = Operation::Clock::now();
  if (!waiting_.Begin(run.waiting, /*writes=*/true)) return;   // FailLetGo ends it
  if (run.awaits_sizes) {
    const Result<bool> started = StartFetchSizes(op, &run.whole);
    if (started.ok() && *started) return CountStarted(op);
    waiting_.End(run.waiting);
    return started.ok() ? listener_.OnSizes(op) : executor_.Fail(op, started.status());
  }
  if (op->plan->starts_from_operands && StartCopies(*op, OperandCopies(*op), &run.whole)) {
    CountStarted(op);
  } else {
    waiting_.End(run.waiting);
  }
  for (TaskId task : std::exchange(run.deferred, {})) executor_.MakeReady(op, task);
  executor_.CheckOver(op);
}

void DeviceExecution::Start(Operation* op, TaskId task) {
  const PlannedTask& t = op->plan->tasks[task];
  const WaitingCalls::Id waiting = OnDevice(*op).waiting;
  if (!waiting_.Begin(waiting, WritesForCaller(t))) return;   // FailLetGo ends it
  Result<bool> started = StartCompute(*op, t, &op->transfers[task]);
  if (started.ok() && *started) return CountStarted(op);
  if (WritesForCaller(t)) waiting_.End(waiting);
  return started.ok() ? executor_.TaskDone(op, task) : executor_.Fail(op, started.status());
}

Status DeviceExecution::End(Operation* op, const PlannedTask& task, Status status) {
  if (task.kind == TaskKind::kSend || task.kind == TaskKind::kRecv) return status;
  --op->device->computing;   // the executor has counted it out of in_flight
  --UseOf(*op).computing;
  const WaitingCalls::Id waiting = OnDevice(*op).waiting;
  if (WritesForCaller(task)) waiting_.End(waiting);
  if (op->failed) return status;
  // It may have read what its caller has overwritten since: nobody gets that.
  if (waiting_.IsLetGo(waiting)) return {Code::kDeadlineExceeded, "its caller has gone on without it"};
  return FinishCompute(*op, task, std::move(status));
}

void DeviceExecution::WholeDone(Operation* op, Status status) {
  CountOver(op);
  waiting_.End(OnDevice(*op).waiting);
  op->last_progress = Operation::Clock::now();
  if (op->failed) return executor_.CheckOver(op);
  if (!status.ok()) return executor_.Fail(op, std::move(status));
  if (op->device->awaits_sizes) return listener_.OnSizes(op);
  executor_.CheckOver(op);
}

bool DeviceExecution::IsSettled(Operation* op) {
  OperationOnDevice& run = OnDevice(*op);
  if (run.computing > 0) return false;
  if (op->failed) {
    // Transfers may go on, for as long as a dead peer holds them open: they touch pinned memory of
    // the engine's, and nothing that the caller's stream touches.
    for (Operation::Block& block : op->code) {
      if (SharedIn(block) != nullptr && SharedIn(block)->imported != 0) Drop(op, &block);
    }
    LeaveCall(op);
    return true;
  }
  if (!run.ready || op->open_tasks > 0 || op->in_flight > 0) return false;
  if (!std::exchange(run.filled, true)) {
    if (!waiting_.Begin(run.waiting, /*writes=*/true)) return false;   // FailLetGo ends it
    if (StartFillUnwritten(*op, &run.whole)) {
      CountStarted(op);
      return false;
    }
    waiting_.End(run.waiting);
  }
  LeaveCall(op);
  return true;
}

void DeviceExecution::OnFailed(Operation* op) { OnDevice(*op).deferred.clear(); }

void DeviceExecution::LeaveCall(Operation* op) {
  DropSizes(op);
  OperationOnDevice& run = OnDevice(*op);
  waiting_.Remove(std::exchange(run.waiting, 0));
  if (run.call == 0) return;
  std::erase(run.use->awaited, op);
  --run.use->entered;
  run.use->device->Leave(std::exchange(run.call, 0));
}

bool DeviceExecution::ReadsInPlace(const Operation& op, const PlannedTask& task) const {
  return MergesInPlace(op, task);
}

void DeviceExecution::Drop(Operation* op, Operation::Block* block) {
  const uint64_t imported = SharedIn(*block)->imported;
  if (imported == 0) return codes_.Drop(op, block);
  block->in_pieces.reset();
  transfers_.ReleaseImported(imported);
}

}  // namespace jaxccomp
