// Memory of a GPU that other processes, and other GPUs, read where it lies (Device::AllocateShared).
//
// By CUDA's IPC: the memory is cudaMalloc's, as a pool's cannot be exported so. To take it, to open it and
// to close it may wait for all of the GPU, so it is taken and opened before the first call, and never
// freed or closed; what is given back is kept for the next. In the process that has it, it is opened by
// its own address, since CUDA opens nothing there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "common/status.h"
#include "cuda/host/api.h"
#include "device/device.h"

namespace jaxccomp::cuda {

class SharedMemory {
 public:
  SharedMemory(CudaApi* api, std::string device) : api_(*api), device_(std::move(device)) {}

  std::byte* Allocate(int64_t bytes);
  void Free(std::byte* memory);
  Result<std::string> Export(const std::byte* memory) const;
  Result<Device::Imported> Import(std::string_view handle);
  void Release(const std::byte* imported);

  // Whether kernels may read or write a code there, without a copy of it: it is memory of this kind,
  // and aligned as they need it.
  bool CanBeReadAt(const std::byte* code) const;

 private:
  static bool IsIn(const std::map<const std::byte*, int64_t>& all, const std::byte* at);

  struct Opened {
    Device::Imported imported;
    int64_t uses = 0;
  };
  CudaApi& api_;
  const std::string device_;
  std::map<const std::byte*, int64_t> taken_, imported_;   // sizes by address
  std::multimap<int64_t, std::byte*> free_;
  std::map<std::string, Opened, std::less<>> opened_;      // by handle
};

}  // namespace jaxccomp::cuda
