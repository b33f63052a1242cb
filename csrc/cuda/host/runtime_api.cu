#include "cuda/host/runtime_api.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "cuda/host/no_gpus.h"
#include "cuda/kernels/common/loaded.h"

namespace jaxccomp::cuda {
namespace {

static_assert(CudaApi::kSuccess == cudaSuccess);

// Clears the calling thread's last error, which later code of the program must not see.
int Seen(cudaError_t error) {
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return error;
}

// The relevant errors have the same numbers in the driver and in the runtime.
int Seen(CUresult error) { return static_cast<int>(error); }

std::string Words(int error) {
  const auto known = static_cast<cudaError_t>(error);
  return std::string(cudaGetErrorString(known)) + " (" + cudaGetErrorName(known) + ")";
}

struct Driver {
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) retain_context = nullptr;
  decltype(&cuCtxPushCurrent) push_context = nullptr;
  decltype(&cuCtxPopCurrent) pop_context = nullptr;
};

template <typename F>
Status Find(const char* name, F* function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const int error = Seen(
      cudaGetDriverEntryPointByVersion(name, &found, CUDA_VERSION, cudaEnableDefault, &result));
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr) {
    return {Code::kUnavailable, std::string("the CUDA driver has no ") + name + ": update it"};
  }
  *function = reinterpret_cast<F>(found);
  return Status::Ok();
}

class RuntimeApi final : public CudaApi {
 public:
  Status Open(int ordinal);

  std::string Describe(int error) const override { return Words(error); }

  // Pushes a context instead of calling cudaSetDevice: End would have to restore the previous device, which would
  // create a context there even if the program never used that device.
  int Begin() override { return Seen(driver_.push_context(context_)); }
  void End() override {
    CUcontext own;
    static_cast<void>(driver_.pop_context(&own));
  }

  int Allocate(std::byte** memory, int64_t bytes, CUstream_st* stream) override {
    return Seen(cudaMallocFromPoolAsync(reinterpret_cast<void**>(memory),
                                        static_cast<size_t>(bytes), pool_, stream));
  }
  int Free(std::byte* memory, CUstream_st* stream) override {
    return Seen(cudaFreeAsync(memory, stream));
  }
  int FreeBytes(int64_t* free_bytes, int64_t* all_bytes) override {
    size_t free = 0, all = 0;
    const int error = Seen(cudaMemGetInfo(&free, &all));
    *free_bytes = static_cast<int64_t>(free);
    *all_bytes = static_cast<int64_t>(all);
    return error;
  }
  int AllocatePinned(std::byte** memory, int64_t bytes) override {
    return Seen(cudaHostAlloc(reinterpret_cast<void**>(memory), static_cast<size_t>(bytes),
                              cudaHostAllocMapped | cudaHostAllocPortable));
  }

  int FreePinned(std::byte* memory) override { return Seen(cudaFreeHost(memory)); }

  int MakeEvent(CUevent_st** event) override {
    return Seen(cudaEventCreateWithFlags(event, cudaEventDisableTiming | cudaEventBlockingSync));
  }
  int Record(CUevent_st* event, CUstream_st* stream) override {
    return Seen(cudaEventRecord(event, stream));
  }
  int Wait(CUevent_st* event) override { return Seen(cudaEventSynchronize(event)); }
  int FreeEvent(CUevent_st* event) override { return Seen(cudaEventDestroy(event)); }

  int Copy(void* to, const void* from, int64_t bytes, CUstream_st* stream) override {
    return Seen(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream));
  }
  int SetZero(void* to, int64_t bytes, CUstream_st* stream) override {
    return Seen(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream));
  }

 private:
  Status FindDriver();
  Status CheckAbilities(int ordinal) const;
  int MakePool(int ordinal);
  int LoadAll();

  Driver driver_;
  CUcontext context_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
};

Status RuntimeApi::FindDriver() {
  const Status all[] = {Find("cuDeviceGet", &driver_.device_get),
                        Find("cuDevicePrimaryCtxRetain", &driver_.retain_context),
                        Find("cuCtxPushCurrent", &driver_.push_context),
                        Find("cuCtxPopCurrent", &driver_.pop_context)};
  for (const Status& found : all) {
    if (!found.ok()) return found;
  }
  return Status::Ok();
}

Status RuntimeApi::CheckAbilities(int ordinal) const {
  constexpr std::pair<cudaDeviceAttr, const char*> kNeeded[] = {
      {cudaDevAttrUnifiedAddressing, "one address space with the host"},
      {cudaDevAttrCanMapHostMemory, "mapped memory of the host"},
      {cudaDevAttrMemoryPoolsSupported, "memory pools"}};
  for (const auto& [attribute, what] : kNeeded) {
    int has = 0;
    if (Seen(cudaDeviceGetAttribute(&has, attribute, ordinal)) != cudaSuccess || has == 0) {
      return {Code::kUnavailable, std::string("it does not have ") + what};
    }
  }
  return Status::Ok();
}

// A separate pool that never returns memory to the driver: the driver may wait for the whole device. A stream reuses
// another stream's memory only after that memory is free, so that no stream waits for another.
int RuntimeApi::MakePool(int ordinal) {
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = ordinal;
  int error = Seen(cudaMemPoolCreate(&pool_, &properties));
  if (error != cudaSuccess) return error;
  uint64_t all = std::numeric_limits<uint64_t>::max();
  error = Seen(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &all));
  if (error != cudaSuccess) return error;
  int no = 0;
  return Seen(cudaMemPoolSetAttribute(pool_, cudaMemPoolReuseAllowInternalDependencies, &no));
}

// Loads all kernels (loaded.h).
int RuntimeApi::LoadAll() {
  for (const void* kernel : AllKernels()) {
    cudaFuncAttributes attributes;
    if (const int error = Seen(cudaFuncGetAttributes(&attributes, kernel)); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

Status RuntimeApi::Open(int ordinal) {
  const auto failed = [](const char* what, int error) {
    return Status(Code::kUnavailable, std::string(what) + " failed: " + Words(error));
  };
  if (Status status = FindDriver(); !status.ok()) return status;
  if (Status status = CheckAbilities(ordinal); !status.ok()) return status;
  CUdevice device = 0;
  int error = Seen(driver_.device_get(&device, ordinal));
  if (error == cudaSuccess) error = Seen(driver_.retain_context(&context_, device));
  if (error == cudaSuccess) error = Begin();
  if (error != cudaSuccess) return failed("taking its context", error);
  error = MakePool(ordinal);
  const char* what = "making a memory pool";
  if (error == cudaSuccess) {
    what = "loading the kernels";
    error = LoadAll();
  }
  End();
  return error == cudaSuccess ? Status::Ok() : failed(what, error);
}

}  // namespace

int CountGpus(std::string* reason) {
  int count = 0, driver = 0;
  const int error = Seen(cudaGetDeviceCount(&count));
  if (error == cudaSuccess && count > 0) return count;
  static_cast<void>(Seen(cudaDriverGetVersion(&driver)));
  *reason = WhyNoGpus(error == cudaSuccess ? "" : Words(error), driver, CUDART_VERSION);
  return 0;
}

Result<std::unique_ptr<CudaApi>> MakeRuntimeApi(int ordinal) {
  auto api = std::make_unique<RuntimeApi>();
  if (Status status = api->Open(ordinal); !status.ok()) return status;
  return std::unique_ptr<CudaApi>(std::move(api));
}

}  // namespace jaxccomp::cuda
