// What the handlers of all platforms share: a compiled call site, and the call of one run.
#pragma once

#include <memory>
#include <utility>

#include "runtime/engine.h"
#include "xla/ffi/api/ffi.h"

namespace jaxccomp {

// What XLA keeps for each compiled call site. A platform has a class of its own with an `id`: XLA's
// registries of types are one per plugin, and number them differently.
struct CallSite {
  explicit CallSite(std::unique_ptr<Site> s) : site(std::move(s)) {}
  ~CallSite() { Engine::Get().Forget(*site); }
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;
  std::unique_ptr<Site> site;
};

xla::ffi::Error ToError(const Status& status);

Result<std::unique_ptr<Site>> SiteFrom(const xla::ffi::Dictionary& attributes);

// The instantiate stage of a platform.
template <typename PlatformCallSite>
xla::ffi::ErrorOr<std::unique_ptr<PlatformCallSite>> Instantiate(xla::ffi::Dictionary attributes) {
  Result<std::unique_ptr<Site>> site = SiteFrom(attributes);
  if (!site.ok()) return xla::ffi::Unexpected(ToError(site.status()));
  return std::make_unique<PlatformCallSite>(std::move(*site));
}

// Gives a hash of the name of the Python thread that calls it; 0 for a thread of XLA's. Set once, before
// the first run; until then all threads are unknown.
void SetLaunchingThread(uint32_t (*launching_thread)());

// One run's tensors. `device` is the engine's number of the device that it runs on.
Result<Call> CallFrom(const Site& site, xla::ffi::RunId run, int64_t device,
                      const xla::ffi::RemainingArgs& arguments,
                      const xla::ffi::RemainingRets& results);

}  // namespace jaxccomp
