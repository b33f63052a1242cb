// What the handlers of NCCL's collectives do, whosever communicator it is.
#pragma once

#include <cstdint>

#include "handlers/arguments.h"
#include "nccl/backend.h"

namespace jaxccomp {

// Has the GPU of that ordinal join the call site; `stream` may be null for a site on XLA's communicators.
Status JoinNccl(nccl::NcclCallSite& site, void* stream, xla::ffi::RunId run, int32_t ordinal);
// Queues the call on the stream; `handle` is the communicator of a site on one of XLA's.
Status RunNccl(nccl::NcclCallSite& site, void* stream, xla::ffi::RunId run, int32_t ordinal,
               const xla::ffi::RemainingArgs& arguments, const xla::ffi::RemainingRets& results,
               void* handle = nullptr);

}  // namespace jaxccomp
