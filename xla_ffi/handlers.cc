#include "handlers.h"

#include <memory>
#include <utility>

#include "arguments.h"
#include "runtime/engine.h"

namespace jaxccomp {

namespace ffi = xla::ffi;

struct CallSite {
  static ffi::TypeId id;
  explicit CallSite(std::unique_ptr<Site> s) : site(std::move(s)) {}
  ~CallSite() { Engine::Get().Forget(*site); }
  std::unique_ptr<Site> site;
};

ffi::TypeId CallSite::id = {};

namespace {

ffi::Error ToError(const Status& status) {
  ffi::ErrorCode code = ffi::ErrorCode::kInternal;
  switch (status.code()) {
    case Code::kOk: return ffi::Error::Success();
    case Code::kInvalidArgument: code = ffi::ErrorCode::kInvalidArgument; break;
    case Code::kFailedPrecondition: code = ffi::ErrorCode::kFailedPrecondition; break;
    case Code::kDeadlineExceeded: code = ffi::ErrorCode::kDeadlineExceeded; break;
    case Code::kUnavailable: code = ffi::ErrorCode::kUnavailable; break;
    case Code::kAborted: code = ffi::ErrorCode::kAborted; break;
    case Code::kDataLoss: code = ffi::ErrorCode::kDataLoss; break;
    case Code::kUnimplemented: code = ffi::ErrorCode::kUnimplemented; break;
    case Code::kInternal: break;
  }
  return ffi::Error(code, status.message());
}

ffi::ErrorOr<std::unique_ptr<CallSite>> Instantiate(ffi::Dictionary attributes) {
  Result<OpSpec> spec = SpecFromAttributes(attributes);
  if (!spec.ok()) return ffi::Unexpected(ToError(spec.status()));
  Result<std::unique_ptr<Site>> site = MakeSite(std::move(*spec));
  if (!site.ok()) return ffi::Unexpected(ToError(site.status()));
  return std::make_unique<CallSite>(std::move(*site));
}

template <typename Buffer>
Status AddTensor(const Buffer& buffer, std::vector<Tensor>* tensors) {
  Tensor tensor;
  Result<bool> added = FromXla(buffer, &tensor);
  if (!added.ok()) return added.status();
  if (*added) tensors->push_back(tensor);
  return Status::Ok();
}

// The last half of a call's operands are its references.
void SplitReferences(Call* call) {
  const auto half = call->inputs.begin() + static_cast<ptrdiff_t>(call->inputs.size() / 2);
  call->refs.assign(half, call->inputs.end());
  call->inputs.erase(half, call->inputs.end());
}

ffi::Future Execute(CallSite* call_site, ffi::RunId run, int32_t device,
                    ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  ffi::Promise promise;
  ffi::Future future(promise);
  auto finish = [promise = std::move(promise)](const Status& status) mutable {
    if (status.ok()) promise.SetAvailable();
    else promise.SetError(ToError(status));
  };
  Call call;
  call.run_id = run.run_id;
  call.device = device;
  Status status;
  for (size_t i = 0; i < arguments.size() && status.ok(); ++i) {
    status = AddTensor(*arguments.get<ffi::AnyBuffer>(i), &call.inputs);
  }
  if (call_site->site->spec.referenced) SplitReferences(&call);
  for (size_t i = 0; i < results.size() && status.ok(); ++i) {
    status = AddTensor(**results.get<ffi::AnyBuffer>(i), &call.outputs);
  }
  std::optional<Status> now = status;
  if (status.ok()) now = Engine::Get().Start(*call_site->site, std::move(call), finish);
  if (now.has_value()) finish(*now);
  return future;
}

constexpr ffi::TypeInfo kCallSiteTypeInfo = ffi::MakeTypeInfo<CallSite>();

}  // namespace

XLA_FFI_Error* InstantiateCollective(XLA_FFI_CallFrame* frame) {
  static auto* handler =
      ffi::Ffi::BindInstantiate().Attrs().To(Instantiate).release();
  return handler->Call(frame);
}

XLA_FFI_Error* ExecuteCollective(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::State<CallSite>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .RemainingArgs()
                             .RemainingRets()
                             .To(Execute)
                             .release();
  return handler->Call(frame);
}

ffi::TypeId* CallSiteTypeId() { return &CallSite::id; }
const ffi::TypeInfo* CallSiteTypeInfo() { return &kCallSiteTypeInfo; }

}  // namespace jaxccomp
