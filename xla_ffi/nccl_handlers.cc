// A launch first joins: XLA initialises all calls of a program before it queues anything of it, which
// is where the ranks of a new program meet. Then each call is queued on the stream, and the handler
// returns: neither the host nor XLA waits for others.
#include "nccl_handlers.h"

#include <memory>
#include <utility>

#include "arguments.h"
#include "call_site.h"
#include "device_errors.h"
#include "nccl/backend.h"
#include "nccl_calls.h"

namespace jaxccomp {
namespace {

namespace ffi = xla::ffi;

struct NcclCallSite {
  static ffi::TypeId id;
  explicit NcclCallSite(std::unique_ptr<nccl::CallSite> s) : site(std::move(s)) {}
  ~NcclCallSite() { nccl::Backend::Get().Forget(*site); }
  NcclCallSite(const NcclCallSite&) = delete;
  NcclCallSite& operator=(const NcclCallSite&) = delete;
  std::unique_ptr<nccl::CallSite> site;
};

ffi::TypeId NcclCallSite::id = {};

ffi::ErrorOr<std::unique_ptr<NcclCallSite>> MakeCallSite(ffi::Dictionary attributes) {
  Result<OpSpec> spec = SpecFromAttributes(attributes);
  if (!spec.ok()) return ffi::Unexpected(ToError(spec.status()));
  Result<std::unique_ptr<nccl::CallSite>> site = nccl::CallSite::Make(std::move(*spec));
  if (!site.ok()) return ffi::Unexpected(ToError(site.status()));
  return std::make_unique<NcclCallSite>(std::move(*site));
}

ffi::Error Join(NcclCallSite* call_site, void* stream, ffi::RunId run, int32_t ordinal,
                ffi::RemainingArgs, ffi::RemainingRets) {
  // Without memory there is no device yet: the call joins when it runs.
  if (ordinal < 0) return ffi::Error::Success();
  return ToError(JoinNccl(*call_site->site, stream, run, ordinal));
}

ffi::Error Run(NcclCallSite* call_site, void* stream, ffi::RunId run, int32_t ordinal,
               ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  const Status status = RunNccl(*call_site->site, stream, run, ordinal, arguments, results);
  NoteDeviceCall(status);
  return ToError(status);
}

XLA_FFI_Error* Instantiate(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::BindInstantiate().Attrs().To(MakeCallSite).release();
  return handler->Call(frame);
}

XLA_FFI_Error* Initialize(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::BindInitialize()
                             .Ctx<ffi::State<NcclCallSite>>()
                             .Ctx<ffi::PlatformStream<void*>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .RemainingArgs()
                             .RemainingRets()
                             .To(Join)
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* Execute(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::State<NcclCallSite>>()
                             .Ctx<ffi::PlatformStream<void*>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .RemainingArgs()
                             .RemainingRets()
                             .To(Run)
                             .release();
  return handler->Call(frame);
}

constexpr ffi::TypeInfo kTypeInfo = ffi::MakeTypeInfo<NcclCallSite>();

}  // namespace

const PlatformHandlers& NcclHandlers() {
  static const PlatformHandlers handlers = {.instantiate = Instantiate,
                                            .execute = Execute,
                                            .type_id = &NcclCallSite::id,
                                            .type_info = &kTypeInfo,
                                            .initialize = Initialize};
  return handlers;
}

}  // namespace jaxccomp
