// On a GPU a call is queued behind what its stream has to do, and the handler returns: neither the
// host nor XLA waits. What goes wrong later breaks the communicator, and its next call tells.
#include <utility>

#include "handlers/call_sites.h"
#include "handlers/cuda_devices.h"
#include "handlers/device_errors.h"
#include "handlers/make_handlers.h"

namespace jaxccomp {
namespace {

namespace ffi = xla::ffi;

Status Start(CallSite& site, void* stream, ffi::RunId run, int32_t ordinal,
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

struct CudaPlatform : EnginePlatform {
  static ffi::Error Execute(FfiState<CudaPlatform>* state, void* stream, ffi::RunId run,
                            int32_t ordinal, ffi::RemainingArgs arguments,
                            ffi::RemainingRets results) {
    const Status status = Start(*state->site, stream, run, ordinal, arguments, results);
    NoteDeviceCall(status);
    return ToError(status);
  }
};

}  // namespace

const PlatformHandlers& CudaHandlers() { return MakeHandlers<CudaPlatform>(); }

}  // namespace jaxccomp
