// The GPUs of this process as the handlers and Python know them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/device.h"

namespace jaxccomp {

struct CudaDevice {
  int64_t number;      // the engine's
  Device* memory;
};

// The process's GPUs: CUDA's ordinal and the engine's number of each.
void SetCudaDevices(const std::vector<std::pair<int, int64_t>>& numbers);
// The engine's number of the GPU of that ordinal.
Result<int64_t> FindCudaNumber(int ordinal);
// The GPU of that ordinal, for a call on it.
Result<CudaDevice> FindCudaDevice(int ordinal);
// All that can be used, which are got ready here.
std::vector<CudaDevice> FindCudaDevices();
// Whether the GPUs can send values of that dtype with that codec: they have its kernels, or it leaves
// such values as they are. An error without a GPU.
Result<bool> CudaRuns(std::string_view codec, DType dtype);
// Whether there are kernels that the traced plane may call for that codec and dtype (JAX's name).
Result<bool> CudaRunsOnStreams(std::string_view codec, std::string_view dtype);

}  // namespace jaxccomp
