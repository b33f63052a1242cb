#include "handlers/nccl_calls.h"

#include "handlers/call_sites.h"
#include "handlers/cuda_devices.h"

namespace jaxccomp {

namespace ffi = xla::ffi;

Status JoinNccl(nccl::NcclCallSite& site, void* stream, ffi::RunId run, int32_t ordinal) {
  const Result<int64_t> number = FindCudaNumber(ordinal);
  if (!number.ok()) return number.status();
  return nccl::Backend::Get().Join(site, *number, run.run_id, stream);
}

Status RunNccl(nccl::NcclCallSite& site, void* stream, ffi::RunId run, int32_t ordinal,
               const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results, void* handle) {
  const Result<int64_t> number = FindCudaNumber(ordinal);
  if (!number.ok()) return number.status();
  Result<Call> call = CallFrom(site.site(), run, *number, arguments, results);
  if (!call.ok()) return call.status();
  call->stream = stream;
  return nccl::Backend::Get().Run(site, *call, handle);
}

}  // namespace jaxccomp
