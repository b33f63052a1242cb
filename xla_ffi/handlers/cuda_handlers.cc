// The FFI handlers on CUDA. The stage runs each call (cuda/stage/stage.h); the handler returns when the call is over.
#include <memory>
#include <utility>

#include "cuda/stage/stage.h"
#include "handlers/arguments.h"
#include "handlers/call_sites.h"
#include "handlers/cuda_devices.h"
#include "handlers/make_handlers.h"

namespace jaxccomp {
namespace {

namespace ffi = xla::ffi;

struct CudaPlatform {
  using Site = StageSite;
  static Result<std::unique_ptr<StageSite>> Make(const ffi::Dictionary& attributes) {
    Result<OpSpec> spec = SpecFromAttributes(attributes);
    if (!spec.ok()) return spec.status();
    return MakeStageSite(std::move(*spec));
  }
  static void Forget(StageSite& site) { Engine::Get().Forget(*site.site); }

  static Status Run(StageSite& site, void* stream, ffi::RunId run, int32_t ordinal,
                    const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results) {
    const Result<CudaDevice> device = FindCudaDevice(ordinal);
    if (!device.ok()) {
      return {device.status().code(), *site.site->text + ": " + device.status().message()};
    }
    const Result<Call> call = CallFrom(*site.site, run, device->number, arguments, results);
    if (!call.ok()) return call.status();
    return device->stage->Run(Engine::Get(), site, *call, stream);
  }
  static ffi::Error Execute(FfiState<CudaPlatform>* state, void* stream, ffi::RunId run,
                            int32_t ordinal, ffi::RemainingArgs arguments,
                            ffi::RemainingRets results) {
    return ToError(Run(*state->site, stream, run, ordinal, arguments, results));
  }
};

}  // namespace

const PlatformHandlers& CudaHandlers() { return MakeHandlers<CudaPlatform>(); }

}  // namespace jaxccomp
