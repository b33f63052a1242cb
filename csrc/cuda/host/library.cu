#include "cuda/cuda_interface.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "common/dynamic_library.h"
#include "cuda/host/cuda_gpu.h"
#include "cuda/host/runtime_api.h"
#include "cuda/host/stream_codecs.h"

namespace jaxccomp::cuda {
namespace {

constexpr KernelTable kKernels = {
    .lossless_encode_workspace_bytes = &LosslessEncodeWorkspaceBytes,
    .lossless_decode_workspace_bytes = &LosslessDecodeWorkspaceBytes,
    .lossless_encode = &LosslessEncode,
    .lossless_decode = &LosslessDecode,
    .nvcomp_prepare = &NvcompPrepare,
    .nvcomp_encode_workspace_bytes = &NvcompEncodeWorkspaceBytes,
    .nvcomp_decode_workspace_bytes = &NvcompDecodeWorkspaceBytes,
    .nvcomp_encode = &NvcompEncode,
    .nvcomp_decode = &NvcompDecode,
};

constexpr StreamKernels kStreamKernels = {
    .encode = &Encode,
    .decode_into = &DecodeInto,
    .decode_sum = &DecodeSum,
};

Result<CudaGpu*> MakeGpu(int ordinal) {
  const std::string name = "cuda:" + std::to_string(ordinal);
  std::string reason;
  const int count = CountGpus(&reason);
  if (ordinal < 0 || ordinal >= count) {
    if (reason.empty()) reason = "the GPUs go from 0 to " + std::to_string(count - 1);
    return Status(Code::kUnavailable, name + " cannot be used: " + reason);
  }
  Result<std::unique_ptr<CudaApi>> api = MakeRuntimeApi(ordinal);
  if (!api.ok()) {
    return Status(api.status().code(), name + " cannot be used: " + api.status().message());
  }
  // Leaked on purpose: CUDA shuts down in its own order.
  CudaApi* const kept = (*api).release();
  return new CudaGpu(kept, &kKernels, name);
}

}  // namespace
}  // namespace jaxccomp::cuda

extern "C" {

const char* jaxccomp_cuda_version() { return JAXCCOMP_VERSION; }

void jaxccomp_cuda_add_library_path(const char* name, const char* path) {
  jaxccomp::AddLibraryPath(name, path);
}

int jaxccomp_cuda_device_count(std::string* reason) { return jaxccomp::cuda::CountGpus(reason); }

jaxccomp::Gpu* jaxccomp_cuda_gpu(int ordinal, std::string* reason) {
  static std::mutex mutex;
  static auto* const gpus = new std::map<int, jaxccomp::Gpu*>;
  std::lock_guard<std::mutex> lock(mutex);
  if (const auto known = gpus->find(ordinal); known != gpus->end()) return known->second;
  const jaxccomp::Result<jaxccomp::cuda::CudaGpu*> made = jaxccomp::cuda::MakeGpu(ordinal);
  if (!made.ok()) {
    *reason = made.status().message();
    return nullptr;
  }
  return gpus->emplace(ordinal, *made).first->second;
}

const jaxccomp::StreamCodecs* jaxccomp_cuda_stream_codecs() {
  static const auto* const codecs =
      new jaxccomp::cuda::CudaStreamCodecs(&jaxccomp::cuda::kStreamKernels);
  return codecs;
}

}  // extern "C"
