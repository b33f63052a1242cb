// On a GPU a call comes behind what its stream has to do. The handler returns when it is over, or, with
// device_wait="stream", at once: neither the host nor XLA waits then, and what goes wrong later breaks the
// communicator, whose next call tells.
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
  return Engine::Get().RunOnDevice(site, std::move(*call));
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
