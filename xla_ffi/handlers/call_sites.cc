#include "handlers/call_sites.h"

#include <deque>
#include <mutex>

#include "handlers/arguments.h"

namespace jaxccomp {

namespace ffi = xla::ffi;

namespace {

template <typename Buffer>
Status AddTensor(const Buffer& buffer, std::vector<Tensor>* tensors) {
  Tensor tensor;
  Result<bool> added = FromXla(buffer, &tensor);
  if (!added.ok()) return added.status();
  if (*added) tensors->push_back(tensor);
  return Status::Ok();
}

uint32_t (*launching_thread)() = nullptr;

// A call has n operands, followed by n * `each` other inputs. Moves these other inputs to `others`.
void SplitOperands(int each, Call* call, std::vector<Tensor>* others) {
  const size_t count = call->inputs.size() / static_cast<size_t>(1 + each);
  const auto first = call->inputs.begin() + static_cast<ptrdiff_t>(count);
  others->assign(first, call->inputs.end());
  call->inputs.erase(first, call->inputs.end());
}

constexpr size_t kMaxRecentErrors = 64;
std::mutex recent_errors_mutex;
std::deque<std::string> recent_errors;   // the latest first

}  // namespace

void RememberError(const std::string& text) {
  const std::lock_guard<std::mutex> lock(recent_errors_mutex);
  std::erase(recent_errors, text);
  recent_errors.push_front(text);
  if (recent_errors.size() > kMaxRecentErrors) recent_errors.pop_back();
}

std::vector<std::string> RecentErrors() {
  const std::lock_guard<std::mutex> lock(recent_errors_mutex);
  return {recent_errors.begin(), recent_errors.end()};
}

void SetLaunchingThread(uint32_t (*function)()) { launching_thread = function; }

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
  RememberError(status.message());
  return ffi::Error(code, status.message());
}

Result<std::unique_ptr<CallSite>> EnginePlatform::Make(const ffi::Dictionary& attributes) {
  Result<OpSpec> spec = SpecFromAttributes(attributes);
  if (!spec.ok()) return spec.status();
  return MakeCallSite(std::move(*spec));
}

Result<Call> CallFrom(const CallSite& site, ffi::RunId run, int64_t device,
                      const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results) {
  Call call;
  call.run_id = run.run_id;
  call.device = device;
  if (launching_thread != nullptr) call.launched_by = launching_thread();
  for (size_t i = 0; i < arguments.size(); ++i) {
    Status status = AddTensor(*arguments.get<ffi::AnyBuffer>(i), &call.inputs);
    if (!status.ok()) return status;
  }
  if (site.spec.has_ref) SplitOperands(site.spec.ReferencesEach(), &call, &call.refs);
  if (site.spec.adds_residual) SplitOperands(1, &call, &call.residuals_in);
  for (size_t i = 0; i < results.size(); ++i) {
    Status status = AddTensor(**results.get<ffi::AnyBuffer>(i), &call.outputs);
    if (!status.ok()) return status;
  }
  return call;
}

}  // namespace jaxccomp
