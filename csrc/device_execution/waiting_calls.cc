#include "device_execution/waiting_calls.h"

#include <atomic>
#include <memory>

#include "execution/operation.h"

namespace jaxccomp {

WaitingCalls::Id WaitingCalls::Add(Operation* op, Device* device) {
  std::lock_guard lock(mutex_);
  Call& call = calls_[next_];
  call.op = op;
  call.device = device;
  call.text = *op->text;
  return next_++;
}

void WaitingCalls::SetEntered(Id id, Device::CallId call) {
  std::lock_guard lock(mutex_);
  calls_.at(id).entered = call;
}

std::function<void(Status)> WaitingCalls::SetDone(Id id, const std::function<void(Status)>& done) {
  const auto told = std::make_shared<std::atomic<bool>>(false);
  const auto once = [done, told](Status status) {
    if (!told->exchange(true)) done(std::move(status));
  };
  std::lock_guard lock(mutex_);
  // It may have failed, and left, already.
  if (const auto call = calls_.find(id); call != calls_.end()) call->second.done = once;
  return once;
}

bool WaitingCalls::Begin(Id id, bool writes) {
  std::lock_guard lock(mutex_);
  Call& call = calls_.at(id);
  if (!call.let_go) call.writers += writes;
  return !call.let_go;
}

void WaitingCalls::End(Id id) {
  std::lock_guard lock(mutex_);
  --calls_.at(id).writers;
}

void WaitingCalls::Remove(Id id) {
  std::lock_guard lock(mutex_);
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;
  untold_ -= found->second.let_go && !found->second.told;
  calls_.erase(found);
}

bool WaitingCalls::IsLetGo(Id id) const {
  std::lock_guard lock(mutex_);
  return calls_.at(id).let_go;
}

std::pair<Operation*, Status> WaitingCalls::NextLetGo() {
  std::lock_guard lock(mutex_);
  if (untold_ == 0) return {nullptr, Status::Ok()};
  for (auto& [id, call] : calls_) {
    if (!call.let_go || call.told) continue;
    call.told = true;
    --untold_;
    return {call.op, call.why};
  }
  return {nullptr, Status::Ok()};
}

bool WaitingCalls::empty() const {
  std::lock_guard lock(mutex_);
  return calls_.empty();
}

WaitingCalls::Counts WaitingCalls::LetGo(const Status& why) {
  std::lock_guard lock(mutex_);
  Counts counts;
  for (auto& [id, call] : calls_) {
    if (call.let_go) continue;
    if (call.writers > 0) {
      ++counts.written;
      continue;
    }
    // One that is being entered holds nobody up but the thread that enters it.
    if (call.entered == Device::kNoCall) continue;
    call.let_go = true;
    call.why = why;
    ++untold_;
    ++counts.let_go;
    call.device->LetPass(call.entered);
    if (call.done != nullptr) call.done({why.code(), call.text + ": " + why.message()});
  }
  return counts;
}

}  // namespace jaxccomp
