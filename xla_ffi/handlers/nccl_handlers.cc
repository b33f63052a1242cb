// A launch first joins: XLA initialises all calls of a program before it queues anything of it, which
// is where the ranks of a new program meet. Then each call is queued on the stream, and the handler
// returns: neither the host nor XLA waits for others.
#include <memory>
#include <utility>

#include "handlers/arguments.h"
#include "handlers/device_errors.h"
#include "handlers/make_handlers.h"
#include "handlers/nccl_calls.h"
#include "nccl/backend.h"

namespace jaxccomp {
namespace {

namespace ffi = xla::ffi;

struct NcclPlatform {
  using Site = nccl::NcclCallSite;
  using State = FfiState<NcclPlatform>;

  static Result<std::unique_ptr<Site>> Make(const ffi::Dictionary& attributes) {
    Result<OpSpec> spec = SpecFromAttributes(attributes);
    if (!spec.ok()) return spec.status();
    return Site::Make(std::move(*spec));
  }
  static void Forget(Site& site) { nccl::Backend::Get().Forget(site); }

  static ffi::Error Initialize(State* state, void* stream, ffi::RunId run, int32_t ordinal,
                               ffi::RemainingArgs, ffi::RemainingRets) {
    // Without memory there is no device yet: the call joins when it runs.
    if (ordinal < 0) return ffi::Error::Success();
    return ToError(JoinNccl(*state->site, stream, run, ordinal));
  }
  static ffi::Error Execute(State* state, void* stream, ffi::RunId run, int32_t ordinal,
                            ffi::RemainingArgs arguments, ffi::RemainingRets results) {
    const Status status = RunNccl(*state->site, stream, run, ordinal, arguments, results);
    NoteDeviceCall(status);
    return ToError(status);
  }
};

}  // namespace

const PlatformHandlers& NcclHandlers() { return MakeHandlers<NcclPlatform>(); }

}  // namespace jaxccomp
