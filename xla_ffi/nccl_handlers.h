// The FFI handlers of collectives whose values NCCL moves, on the platform CUDA.
#pragma once

#include "handlers.h"

namespace jaxccomp {

const PlatformHandlers& NcclHandlers();

}  // namespace jaxccomp
