// Common code of the handlers of all platforms: makes the CallSite of a compiled call, and the Call of each run.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "xla/ffi/api/ffi.h"

namespace jaxccomp {

xla::ffi::Error ToError(const Status& status);
// Adds a text to the texts that RecentErrors returns.
void RememberError(const std::string& text);
// The texts of the last errors that ToError returned, the latest first: JAX raises them in classes of its own choice, so
// jaxccomp.errors.of recognises an error by its text.
std::vector<std::string> RecentErrors();

// Base class of platforms (make_handlers.h) whose values are in host memory.
struct EnginePlatform {
  using Site = CallSite;
  static Result<std::unique_ptr<CallSite>> Make(const xla::ffi::Dictionary& attributes);
  static void Forget(CallSite& site) { Engine::Get().Forget(site); }
};

// `launching_thread` returns a hash of the calling Python thread's name; 0 in XLA's threads. Set it once, before the
// first run. Without it, Call::launched_by is 0.
void SetLaunchingThread(uint32_t (*launching_thread)());

// Returns the Call of a run. `device`: the engine's number of the device.
Result<Call> CallFrom(const CallSite& site, xla::ffi::RunId run, int64_t device,
                      const xla::ffi::RemainingArgs& arguments,
                      const xla::ffi::RemainingRets& results);

}  // namespace jaxccomp
