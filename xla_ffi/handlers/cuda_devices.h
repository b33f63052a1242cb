// The GPUs of this process, for the handlers and for Python.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/stage/stage.h"
#include "cuda/stream_codecs.h"

namespace jaxccomp {

struct CudaDevice {
  int64_t number;      // the engine's device number
  Stage* stage;
};

// Opens the process's GPUs, given as (CUDA's ordinal, the engine's number). This creates contexts, allocates memory
// and loads kernels: call it at initialisation, never while XLA runs a program. Returns the first error.
Status OpenCudaDevices(const std::vector<std::pair<int, int64_t>>& numbers);
// Returns the GPU that OpenCudaDevices has opened with this ordinal, or the error of opening it.
Result<CudaDevice> FindCudaDevice(int ordinal);
// All open GPUs.
std::vector<CudaDevice> FindCudaDevices();
// The stream codecs of this GPU.
Result<const StreamCodecs*> FindCudaStreamCodecs(int ordinal);
// Whether the stage supports the codec for the dtype. Returns an error if no GPU is open.
Result<bool> CudaRuns(std::string_view codec, DType dtype);
// Whether the traced plane has kernels for the codec and the dtype (JAX's name).
Result<bool> CudaRunsOnStreams(std::string_view codec, std::string_view dtype);

}  // namespace jaxccomp
