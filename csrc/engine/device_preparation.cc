#include "engine/device_preparation.h"

#include <algorithm>
#include <chrono>

#include "device/device.h"

namespace jaxccomp {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(200);

// Dtypes that the codec does not have travel as they are.
Status CheckRuns(const CallSite& site, const Call& call) {
  if (site.codec == nullptr) return Status::Ok();
  const Codec& codec = *site.codec;
  // What sendrecv receives may be of other dtypes than what it sends.
  for (const auto* tensors : {&call.inputs, &call.outputs}) {
    for (const Tensor& t : *tensors) {
      if (!codec.Supports(t.dtype) || call.memory->Runs(codec, t.dtype)) continue;
      return {Code::kUnimplemented, site.spec.ToString() + ": codec '" + codec.traits().spec +
                                        "' of " + std::string(Name(t.dtype)) +
                                        " does not run on " + std::string(call.memory->name()) +
                                        "; take another one, or move the tensors to the host"};
    }
  }
  return Status::Ok();
}

}  // namespace

Status DevicePreparation::Prepare(CallSite& site, const Call& call,
                                  std::unique_lock<std::mutex>& lock) {
  Device* const device = call.memory;
  if (device == nullptr) return Status::Ok();
  if (Status runs = CheckRuns(site, call); !runs.ok()) return runs;
  const auto known = std::find(site.prepared_on.begin(), site.prepared_on.end(), device);
  if (known == site.prepared_on.end() && site.codec != nullptr) {
    for (const auto* tensors : {&call.inputs, &call.outputs}) {
      for (const Tensor& t : *tensors) {
        if (!site.codec->Supports(t.dtype)) continue;
        Status status = Prepare(site, device, t.dtype, lock);
        if (!status.ok()) return status;
      }
    }
    site.prepared_on.push_back(device);
  }
  wake_.wait(lock, [&] { return !preparing_.contains(device); });
  return Status::Ok();
}

Status DevicePreparation::Prepare(const CallSite& site, Device* device, DType dtype,
                                  std::unique_lock<std::mutex>& lock) {
  const Codec& codec = *site.codec;
  const auto until = Clock::now() + std::chrono::duration<double>(state_.options.timeout_seconds);
  while (!state_.stopped) {
    if (preparing_.contains(device)) {
      wake_.wait(lock);
      continue;
    }
    if (device->IsPrepared(codec, dtype)) return Status::Ok();
    if (!state_.devices.IsEntered(device)) break;
    if (Clock::now() > until) {
      return {Code::kDeadlineExceeded,
              *site.text + ": before codec '" + codec.traits().spec + "' is first used on " +
                  std::string(device->name()) + " the operations before it must be over, and some "
                  "are not after " + std::to_string(state_.options.timeout_seconds) +
                  " s; see which ranks have not come to them"};
    }
    needs_progress_();
    wake_.wait_for(lock, kPollInterval);
  }
  if (state_.stopped) return Status::Ok();   // which Post tells
  preparing_.insert(device);
  lock.unlock();
  Status status = device->Prepare(codec, dtype);
  lock.lock();
  preparing_.erase(device);
  wake_.notify_all();
  if (status.ok()) return status;
  return {status.code(), *site.text + ": codec '" + codec.traits().spec + "' cannot be used on " +
                             std::string(device->name()) + ": " + status.message()};
}

}  // namespace jaxccomp
