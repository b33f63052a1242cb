// CudaApi of a GPU, by CUDA's runtime library and, where that has no function for it, by the driver,
// which is looked up: the library is not linked to it.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "cuda/host/api.h"

namespace jaxccomp::cuda {

// How many GPUs there are; 0 with the reason where there is none.
int CountGpus(std::string* reason);

// With all kernels loaded. kUnavailable with the reason where the GPU cannot be used.
Result<std::unique_ptr<CudaApi>> MakeRuntimeApi(int ordinal);

}  // namespace jaxccomp::cuda
