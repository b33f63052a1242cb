// On the CPU a call completes through a future: no thread of XLA waits for a peer.
#include <optional>
#include <utility>

#include "call_site.h"
#include "handlers.h"

namespace jaxccomp {
namespace {

namespace ffi = xla::ffi;

struct CpuCallSite : CallSite {
  using CallSite::CallSite;
  static ffi::TypeId id;
};

ffi::TypeId CpuCallSite::id = {};

ffi::Future Execute(CpuCallSite* call_site, ffi::RunId run, int32_t device,
                    ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  ffi::Promise promise;
  ffi::Future future(promise);
  auto finish = [promise = std::move(promise)](const Status& status) mutable {
    if (status.ok()) promise.SetAvailable();
    else promise.SetError(ToError(status));
  };
  Result<Call> call = CallFrom(*call_site->site, run, device, arguments, results);
  std::optional<Status> now = call.status();
  if (call.ok()) now = Engine::Get().Start(*call_site->site, std::move(*call), finish);
  if (now.has_value()) finish(*now);
  return future;
}

XLA_FFI_Error* InstantiateCollective(XLA_FFI_CallFrame* frame) {
  static auto* handler =
      ffi::Ffi::BindInstantiate().Attrs().To(Instantiate<CpuCallSite>).release();
  return handler->Call(frame);
}

XLA_FFI_Error* ExecuteCollective(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::State<CpuCallSite>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .RemainingArgs()
                             .RemainingRets()
                             .To(Execute)
                             .release();
  return handler->Call(frame);
}

constexpr ffi::TypeInfo kTypeInfo = ffi::MakeTypeInfo<CpuCallSite>();

}  // namespace

const PlatformHandlers& CpuHandlers() {
  static const PlatformHandlers handlers = {InstantiateCollective, ExecuteCollective,
                                            &CpuCallSite::id, &kTypeInfo};
  return handlers;
}

}  // namespace jaxccomp
