// CudaApi of a GPU, implemented with CUDA's runtime. Functions that the runtime lacks are looked up in the driver at
// run time: the library is not linked to the driver.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "cuda/host/api.h"

namespace jaxccomp::cuda {

// The number of GPUs; if 0, sets the reason.
int CountGpus(std::string* reason);

// Opens a GPU and loads all kernels. kUnavailable with the reason if it cannot be used.
Result<std::unique_ptr<CudaApi>> MakeRuntimeApi(int ordinal);

}  // namespace jaxccomp::cuda
