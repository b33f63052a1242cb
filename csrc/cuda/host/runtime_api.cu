#include "cuda/host/runtime_api.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "cuda/host/no_gpus.h"
#include "cuda/kernels/common/loaded.h"

namespace jaxccomp::cuda {
namespace {

static_assert(CudaApi::kSuccess == cudaSuccess);
static_assert(CudaApi::kOutOfMemory == cudaErrorMemoryAllocation);
static_assert(CudaApi::kNotReady == cudaErrorNotReady);

// Of the calling thread CUDA remembers its last error, which is nobody's afterwards.
int Seen(cudaError_t error) {
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return error;
}

// The driver numbers the errors that matter as the runtime does.
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
  decltype(&cuStreamWaitValue32) wait_value = nullptr;
  decltype(&cuMemGetAddressRange) address_range = nullptr;
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

  // By contexts rather than by cudaSetDevice, which would make one on the GPU that the thread had
  // before, if only by default.
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

  int AllocateShared(std::byte** memory, int64_t bytes) override {
    return Seen(cudaMalloc(reinterpret_cast<void**>(memory), static_cast<size_t>(bytes)));
  }
  int Export(IpcKey* key, std::byte* memory) override {
    cudaIpcMemHandle_t handle;
    static_assert(sizeof(handle) == sizeof(*key));
    const int error = Seen(cudaIpcGetMemHandle(&handle, memory));
    std::memcpy(key->data(), &handle, sizeof(handle));
    return error;
  }
  int Import(std::byte** memory, int64_t* bytes, const IpcKey& key) override {
    cudaIpcMemHandle_t handle;
    std::memcpy(&handle, key.data(), sizeof(handle));
    const int error = Seen(cudaIpcOpenMemHandle(reinterpret_cast<void**>(memory), handle,
                                                cudaIpcMemLazyEnablePeerAccess));
    if (error != cudaSuccess) return error;
    CUdeviceptr base = 0;
    size_t size = 0;
    const int known =
        Seen(driver_.address_range(&base, &size, reinterpret_cast<CUdeviceptr>(*memory)));
    *bytes = static_cast<int64_t>(base + size - reinterpret_cast<CUdeviceptr>(*memory));
    return known;
  }
  int ReachPeer(const Uuid& gpu) override;
  Uuid OwnUuid() const override { return uuid_; }
  uint64_t ProcessNumber() const override { return process_; }

  int MakeStream(CUstream_st** stream) override {
    return Seen(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, priority_));
  }
  int MakeEvent(CUevent_st** event) override {
    return Seen(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
  int Record(CUevent_st* event, CUstream_st* stream) override {
    return Seen(cudaEventRecord(event, stream));
  }
  int Query(CUevent_st* event) override { return Seen(cudaEventQuery(event)); }
  int WaitAtLeast(CUstream_st* stream, uint32_t* word, uint32_t value) override {
    return Seen(driver_.wait_value(stream, reinterpret_cast<CUdeviceptr>(word), value,
                                   CU_STREAM_WAIT_VALUE_GEQ));
  }
  int Settle(CUstream_st* stream) override { return Seen(cudaStreamSynchronize(stream)); }

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
  int ordinal_ = 0;
  Uuid uuid_ = {};
  uint64_t process_ = 0;
  CUcontext context_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  int priority_ = 0;
};

int UuidOf(int ordinal, CudaApi::Uuid* uuid) {
  cudaDeviceProp properties;
  const int error = Seen(cudaGetDeviceProperties(&properties, ordinal));
  static_assert(sizeof(properties.uuid) == sizeof(*uuid));
  if (error == cudaSuccess) std::memcpy(uuid->data(), &properties.uuid, sizeof(*uuid));
  return error;
}

int RuntimeApi::ReachPeer(const Uuid& gpu) {
  int count = 0;
  int error = Seen(cudaGetDeviceCount(&count));
  for (int other = 0; error == cudaSuccess && other < count; ++other) {
    Uuid uuid;
    error = UuidOf(other, &uuid);
    if (error != cudaSuccess || uuid != gpu) continue;
    if (other == ordinal_) return cudaSuccess;
    error = Seen(cudaDeviceEnablePeerAccess(other, 0));
    return error == cudaErrorPeerAccessAlreadyEnabled ? cudaSuccess : error;
  }
  return error == cudaSuccess ? cudaErrorInvalidDevice : error;
}

// A process's number says who it is until the kernel gives it to another one, and when it began says
// which of them.
uint64_t NumberOfProcess() {
  std::ifstream stat("/proc/self/stat");
  std::string text;
  std::getline(stat, text, ')');
  uint64_t began = 0;
  for (int field = 3; field <= 22 && stat >> text; ++field) {
    if (field == 22) began = std::strtoull(text.c_str(), nullptr, 10);
  }
  return static_cast<uint64_t>(getpid()) << 40 ^ began;
}

Status RuntimeApi::FindDriver() {
  const Status all[] = {Find("cuDeviceGet", &driver_.device_get),
                        Find("cuDevicePrimaryCtxRetain", &driver_.retain_context),
                        Find("cuCtxPushCurrent", &driver_.push_context),
                        Find("cuCtxPopCurrent", &driver_.pop_context),
                        Find("cuStreamWaitValue32", &driver_.wait_value),
                        Find("cuMemGetAddressRange", &driver_.address_range)};
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

// A pool of the device's own, which keeps what it has: to give memory back to the driver may wait for
// all of the device. And memory that a stream gave back goes to another one only when it is free.
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

// The kernels, and those of CUDA that copies and clearing use.
int RuntimeApi::LoadAll() {
  for (const void* kernel : AllKernels()) {
    cudaFuncAttributes attributes;
    if (const int error = Seen(cudaFuncGetAttributes(&attributes, kernel)); error != cudaSuccess) {
      return error;
    }
  }
  constexpr int64_t kBytes = 4096;
  CUstream_st* stream = nullptr;
  std::byte *here = nullptr, *there = nullptr;
  int error = MakeStream(&stream);
  if (error == cudaSuccess) error = AllocatePinned(&here, kBytes);
  if (error == cudaSuccess) error = Allocate(&there, 2 * kBytes, stream);
  if (error == cudaSuccess) error = SetZero(there, 2 * kBytes, stream);
  if (error == cudaSuccess) error = Copy(there + kBytes, there, kBytes, stream);
  if (error == cudaSuccess) error = Copy(here, there, kBytes, stream);
  if (error == cudaSuccess) error = Copy(there, here, kBytes, stream);
  if (error == cudaSuccess) error = Free(there, stream);
  if (error == cudaSuccess) error = Seen(cudaStreamSynchronize(stream));
  if (error == cudaSuccess) error = Seen(cudaStreamDestroy(stream));
  return error;
}

Status RuntimeApi::Open(int ordinal) {
  const auto failed = [](const char* what, int error) {
    return Status(Code::kUnavailable, std::string(what) + " failed: " + Words(error));
  };
  if (Status status = FindDriver(); !status.ok()) return status;
  if (Status status = CheckAbilities(ordinal); !status.ok()) return status;
  ordinal_ = ordinal;
  process_ = NumberOfProcess();
  CUdevice device = 0;
  int error = UuidOf(ordinal, &uuid_);
  if (error != cudaSuccess) return failed("reading what it is", error);
  error = Seen(driver_.device_get(&device, ordinal));
  if (error == cudaSuccess) error = Seen(driver_.retain_context(&context_, device));
  if (error == cudaSuccess) error = Begin();
  if (error != cudaSuccess) return failed("taking its context", error);
  int least = 0;
  error = Seen(cudaDeviceGetStreamPriorityRange(&least, &priority_));
  if (error == cudaSuccess) error = MakePool(ordinal);
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
