// A launch first joins: XLA initialises all calls of a program before it queues anything of it, which
// is where the ranks of a new program meet. Then each call is queued on the stream, and the handler
// returns: neither the host nor XLA waits for others.
#include <memory>
#include <utility>

#include "handlers/arguments.h"
#include "handlers/call_sites.h"
#include "handlers/cuda_devices.h"
#include "handlers/device_errors.h"
#include "handlers/make_handlers.h"
#include "nccl/backend.h"

namespace jaxccomp {
namespace {

namespace ffi = xla::ffi;

Status Run(nccl::NcclCallSite& site, void* stream, ffi::RunId run, int32_t ordinal,
           const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results) {
  const Result<int64_t> number = FindCudaNumber(ordinal);
  if (!number.ok()) return number.status();
  Result<Call> call = CallFrom(site.site(), run, *number, arguments, results);
  if (!call.ok()) return call.status();
  call->stream = stream;
  return nccl::Backend::Get().Run(site, *call);
}

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
    const Result<int64_t> number = FindCudaNumber(ordinal);
    if (!number.ok()) return ToError(number.status());
    return ToError(nccl::Backend::Get().Join(*state->site, *number, run.run_id, stream));
  }
  static ffi::Error Execute(State* state, void* stream, ffi::RunId run, int32_t ordinal,
                            ffi::RemainingArgs arguments, ffi::RemainingRets results) {
    const Status status = Run(*state->site, stream, run, ordinal, arguments, results);
    NoteDeviceCall(status);
    return ToError(status);
  }
};

}  // namespace

const PlatformHandlers& NcclHandlers() { return MakeHandlers<NcclPlatform>(); }

}  // namespace jaxccomp
