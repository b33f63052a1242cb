// A codec's first operation on a device, before which the device prepares it.
//
// It may wait for all of the device meanwhile, and so for callers' streams that stand in front of a
// call: only while there is none. So the caller's thread waits here until the calls before its own are
// over. They come before it in its stream anyway, and threads of the engine end them.
#include <algorithm>
#include <chrono>

#include "device/device.h"
#include "runtime/engine_impl.h"

namespace jaxccomp {
namespace {

constexpr auto kNap = std::chrono::microseconds(200);

}  // namespace

Status Engine::Impl::PrepareDevice(Site& site, const Call& call,
                                   std::unique_lock<std::mutex>& lock) {
  Device* const device = call.memory;
  if (device == nullptr) return Status::Ok();
  const auto known = std::find(site.prepared_on.begin(), site.prepared_on.end(), device);
  if (known == site.prepared_on.end() && site.codec != nullptr) {
    for (const auto* tensors : {&call.inputs, &call.outputs}) {
      for (const Tensor& t : *tensors) {
        if (!site.codec->Supports(t.dtype)) continue;
        Status status = PrepareDevice(site, device, t.dtype, lock);
        if (!status.ok()) return status;
      }
    }
    site.prepared_on.push_back(device);
  }
  device_wake_.wait(lock, [&] { return !preparing_.contains(device); });
  return Status::Ok();
}

Status Engine::Impl::PrepareDevice(const Site& site, Device* device, DType dtype,
                                   std::unique_lock<std::mutex>& lock) {
  const Codec& codec = *site.codec;
  const auto until = Clock::now() + std::chrono::duration<double>(options_.timeout_seconds);
  while (!stopped_) {
    if (preparing_.contains(device)) {
      device_wake_.wait(lock);
      continue;
    }
    if (device->IsPrepared(codec, dtype)) return Status::Ok();
    if (!executor_.IsEntered(device)) break;
    if (Clock::now() > until) {
      return {Code::kDeadlineExceeded,
              *site.text + ": before codec '" + codec.traits().spec + "' is first used on " +
                  std::string(device->name()) + " the operations before it must be over, and some "
                  "are not after " + std::to_string(options_.timeout_seconds) +
                  " s; see which ranks have not come to them"};
    }
    EnsureProgress();
    device_wake_.wait_for(lock, kNap);
  }
  if (stopped_) return Status::Ok();   // which Post tells
  preparing_.insert(device);
  lock.unlock();
  Status status = device->Prepare(codec, dtype);
  lock.lock();
  preparing_.erase(device);
  device_wake_.notify_all();
  if (status.ok()) return status;
  return {status.code(), *site.text + ": codec '" + codec.traits().spec + "' cannot be used on " +
                             std::string(device->name()) + ": " + status.message()};
}

// Its peers are told: they cannot do it without this rank.
Status Engine::Impl::Refuse(Site& site, const Call& call, Status status) {
  const Result<Endpoint*> endpoint = EndpointOf(site, call.device);
  if (endpoint.ok()) Break(*(*endpoint)->communicator, status, true);
  return status;
}

}  // namespace jaxccomp
