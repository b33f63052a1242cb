#include "nccl_calls.h"

#include "call_site.h"
#include "cuda_devices.h"

namespace jaxccomp {

namespace ffi = xla::ffi;

Status JoinNccl(nccl::CallSite& site, void* stream, ffi::RunId run, int32_t ordinal) {
  const Result<int64_t> number = FindCudaNumber(ordinal);
  if (!number.ok()) return number.status();
  return nccl::Backend::Get().Join(site, *number, run.run_id, stream);
}

Status RunNccl(nccl::CallSite& site, void* stream, ffi::RunId run, int32_t ordinal,
               const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results, void* lent) {
  const Result<int64_t> number = FindCudaNumber(ordinal);
  if (!number.ok()) return number.status();
  Result<Call> call = CallFrom(site.site(), run, *number, arguments, results);
  if (!call.ok()) return call.status();
  call->stream = stream;
  return nccl::Backend::Get().Run(site, *call, lent);
}

}  // namespace jaxccomp
