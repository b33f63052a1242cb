// What the handlers of NCCL's collectives do, whosever communicator it is.
#pragma once

#include <cstdint>

#include "arguments.h"
#include "nccl/backend.h"

namespace jaxccomp {

// Has the GPU of that ordinal join the call site; `stream` may be null for a site that borrows.
Status JoinNccl(nccl::CallSite& site, void* stream, xla::ffi::RunId run, int32_t ordinal);
// Queues the call on the stream; `lent` is the communicator of a site that borrows.
Status RunNccl(nccl::CallSite& site, void* stream, xla::ffi::RunId run, int32_t ordinal,
               const xla::ffi::RemainingArgs& arguments, const xla::ffi::RemainingRets& results,
               void* lent = nullptr);

}  // namespace jaxccomp
