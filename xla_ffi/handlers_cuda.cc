// On a GPU a call is queued behind what its stream has to do, and the handler returns: neither the
// host nor XLA waits. What goes wrong later breaks the communicator, and its next call tells.
#include <optional>
#include <utility>

#include "call_site.h"
#include "cuda_devices.h"
#include "device_errors.h"
#include "handlers.h"

namespace jaxccomp {
namespace {

namespace ffi = xla::ffi;

struct CudaCallSite : CallSite {
  using CallSite::CallSite;
  static ffi::TypeId id;
};

ffi::TypeId CudaCallSite::id = {};

Status Start(Site& site, void* stream, ffi::RunId run, int32_t ordinal,
             const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results) {
  Result<CudaDevice> device = FindCudaDevice(ordinal);
  if (!device.ok()) {
    return {device.status().code(), site.spec.ToString() + ": " + device.status().message()};
  }
  Result<Call> call = CallFrom(site, run, device->number, arguments, results);
  if (!call.ok()) return call.status();
  call->memory = device->memory;
  call->stream = stream;
  return Engine::Get().Start(site, std::move(*call), nullptr).value_or(Status::Ok());
}

ffi::Error Execute(CudaCallSite* call_site, void* stream, ffi::RunId run, int32_t ordinal,
                   ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  const Status status = Start(*call_site->site, stream, run, ordinal, arguments, results);
  NoteDeviceCall(status);
  return ToError(status);
}

XLA_FFI_Error* InstantiateCollective(XLA_FFI_CallFrame* frame) {
  static auto* handler =
      ffi::Ffi::BindInstantiate().Attrs().To(Instantiate<CudaCallSite>).release();
  return handler->Call(frame);
}

XLA_FFI_Error* ExecuteCollective(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::State<CudaCallSite>>()
                             .Ctx<ffi::PlatformStream<void*>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .RemainingArgs()
                             .RemainingRets()
                             .To(Execute)
                             .release();
  return handler->Call(frame);
}

constexpr ffi::TypeInfo kTypeInfo = ffi::MakeTypeInfo<CudaCallSite>();

}  // namespace

const PlatformHandlers& CudaHandlers() {
  static const PlatformHandlers handlers = {InstantiateCollective, ExecuteCollective,
                                            &CudaCallSite::id, &kTypeInfo};
  return handlers;
}

}  // namespace jaxccomp
