// The FFI handlers of collectives that NCCL moves on XLA's own communicator, on the platform CUDA.
#pragma once

#include "handlers.h"

namespace jaxccomp {

const PlatformHandlers& NcclXlaHandlers();

}  // namespace jaxccomp
