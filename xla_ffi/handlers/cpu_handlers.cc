// On the CPU a call completes through a future: no thread of XLA waits for a peer.
#include <optional>
#include <utility>

#include "handlers/call_sites.h"
#include "handlers/make_handlers.h"

namespace jaxccomp {
namespace {

namespace ffi = xla::ffi;

struct CpuPlatform : EnginePlatform {
  static ffi::Future Execute(FfiState<CpuPlatform>* state, ffi::RunId run, int32_t device,
                             ffi::RemainingArgs arguments, ffi::RemainingRets results) {
    ffi::Promise promise;
    ffi::Future future(promise);
    auto finish = [promise = std::move(promise)](const Status& status) mutable {
      if (status.ok()) promise.SetAvailable();
      else promise.SetError(ToError(status));
    };
    Result<Call> call = CallFrom(*state->site, run, device, arguments, results);
    std::optional<Status> now = call.status();
    if (call.ok()) now = Engine::Get().Start(*state->site, std::move(*call), finish);
    if (now.has_value()) finish(*now);
    return future;
  }
};

}  // namespace

const PlatformHandlers& CpuHandlers() { return MakeHandlers<CpuPlatform>(); }

}  // namespace jaxccomp
