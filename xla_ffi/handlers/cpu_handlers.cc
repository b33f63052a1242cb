// The FFI handlers on the CPU. If a call is not over when its handler returns, the handler returns a future. So no
// thread of XLA waits for a peer.
#include <optional>
#include <utility>
#include <variant>

#include "handlers/call_sites.h"
#include "handlers/make_handlers.h"

namespace ffi = xla::ffi;

namespace jaxccomp {

// nullopt for a call that has succeeded, because the allocations of a future are noticeable in short calls. A call that
// has failed gets a future, so that XLA raises the error where the program waits for the results.
using CallOutcome = std::optional<ffi::Future>;

}  // namespace jaxccomp

template <ffi::ExecutionStage stage>
struct xla::ffi::ResultEncoding<stage, jaxccomp::CallOutcome> {
  static std::variant<XLA_FFI_Error*, XLA_FFI_Future*> Encode(const XLA_FFI_Api* api,
                                                              XLA_FFI_ExecutionContext* context,
                                                              jaxccomp::CallOutcome outcome) {
    if (!outcome.has_value()) return static_cast<XLA_FFI_Error*>(nullptr);
    return ResultEncoding<stage, Future>::Encode(api, context, std::move(*outcome));
  }
};

namespace jaxccomp {
namespace {

struct CpuPlatform : EnginePlatform {
  static CallOutcome Execute(FfiState<CpuPlatform>* state, ffi::RunId run, int32_t device,
                             ffi::RemainingArgs arguments, ffi::RemainingRets results) {
    CallOutcome outcome;
    const auto later = [&outcome]() -> Engine::Done {
      ffi::Promise promise;
      outcome.emplace(promise);
      return [promise = std::move(promise)](const Status& status) mutable {
        if (status.ok()) promise.SetAvailable();
        else promise.SetError(ToError(status));
      };
    };
    Result<Call> call = CallFrom(*state->site, run, device, arguments, results);
    std::optional<Status> now = call.status();
    if (call.ok()) now = Engine::Get().Start(*state->site, std::move(*call), later);
    if (now.has_value() && !now->ok()) later()(*now);
    return outcome;
  }
};

ffi::Error PassOperands(ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  for (size_t i = 0; i < results.size(); ++i) {
    ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> result = results.get<ffi::AnyBuffer>(i);
    if (!result.has_value()) return result.error();
    ffi::AnyBuffer& passed = **result;
    ffi::ErrorOr<ffi::AnyBuffer> argument = arguments.get<ffi::AnyBuffer>(i);
    if (argument.has_value() && argument->untyped_data() == passed.untyped_data()) continue;
    const bool token = i + 1 == results.size() && passed.element_type() == ffi::U8 && passed.size_bytes() == 1;
    if (token) {
      *static_cast<uint8_t*>(passed.untyped_data()) = 0;
    } else if (passed.size_bytes() > 0) {
      return ffi::Error::Internal("jaxccomp_pass: XLA has not given a result the memory of its operand");
    }
  }
  return ffi::Error::Success();
}

}  // namespace

const PlatformHandlers& CpuHandlers() { return MakeHandlers<CpuPlatform>(); }

XLA_FFI_Error* Pass(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind().RemainingArgs().RemainingRets().To(PassOperands).release();
  return handler->Call(frame);
}

}  // namespace jaxccomp
