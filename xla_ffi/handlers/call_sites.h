// What the handlers of all platforms share: how a call site is made, and the call of one run.
#pragma once

#include <memory>
#include <utility>

#include "engine/engine.h"
#include "xla/ffi/api/ffi.h"

namespace jaxccomp {

xla::ffi::Error ToError(const Status& status);

// Of platforms (make_handlers.h) whose values lie in the host's memory.
struct EnginePlatform {
  using Site = CallSite;
  static Result<std::unique_ptr<CallSite>> Make(const xla::ffi::Dictionary& attributes);
  static void Forget(CallSite& site) { Engine::Get().Forget(site); }
};

// Gives a hash of the name of the Python thread that calls it; 0 for a thread of XLA's. Set once, before
// the first run; until then all threads are unknown.
void SetLaunchingThread(uint32_t (*launching_thread)());

// One run's tensors. `device` is the engine's number of the device that it runs on.
Result<Call> CallFrom(const CallSite& site, xla::ffi::RunId run, int64_t device,
                      const xla::ffi::RemainingArgs& arguments,
                      const xla::ffi::RemainingRets& results);

}  // namespace jaxccomp
