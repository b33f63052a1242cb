#include "cuda/library.h"

#include <vector>

#include "common/dynamic_library.h"

namespace jaxccomp {
namespace {

// The name to search on the loader's path; its Python packages add their paths.
constexpr const char* kSonames[] = {"libjaxccomp_cuda.so"};

// Passes on the engine's paths of libraries that the CUDA library also opens.
void PassPaths(decltype(&jaxccomp_cuda_add_library_path) add) {
  for (const char* name : {"nvcomp"}) {
    std::vector<std::string> paths = AddedLibraryPaths(name);
    for (auto path = paths.rbegin(); path != paths.rend(); ++path) add(name, path->c_str());
  }
}

std::string Remedy(std::string_view version) {
  return "Install the one that belongs to JAX's CUDA: pip install 'jaxccomp[cuda13]==" +
         std::string(version) + "' (or cuda12)";
}

}  // namespace

CudaLibrary::CudaLibrary(std::string_view version, std::span<const char* const> sonames) {
  DynamicLibrary library(kName, sonames);
  decltype(&jaxccomp_cuda_version) found = nullptr;
  library.Find("jaxccomp_cuda_version", &found);
  // Other symbols may change between versions: look them up only in the right version.
  if (found != nullptr) {
    version_ = found();
    if (version_ != version) {
      status_ = {Code::kFailedPrecondition,
                 "the CUDA library is of jaxccomp " + version_ + ", and the engine of " +
                     std::string(version) + ". " + Remedy(version)};
      return;
    }
    decltype(&jaxccomp_cuda_add_library_path) add_path = nullptr;
    library.Find("jaxccomp_cuda_add_library_path", &add_path);
    library.Find("jaxccomp_cuda_device_count", &count_);
    library.Find("jaxccomp_cuda_gpu", &gpu_);
    library.Find("jaxccomp_cuda_stream_codecs", &stream_codecs_);
    if (library.missing().empty()) PassPaths(add_path);
  }
  if (!library.missing().empty()) {
    status_ = {Code::kUnavailable, library.missing() + ". " + Remedy(version)};
  }
}

CudaLibrary& CudaLibrary::Get() {
  // Leaked on purpose: XLA's threads may outlive static destruction.
  static auto* own = new CudaLibrary(JAXCCOMP_VERSION, kSonames);
  return *own;
}

Result<int> CudaLibrary::CountDevices() const {
  if (!status_.ok()) return status_;
  std::string reason;
  const int count = count_(&reason);
  if (count > 0) return count;
  return Status(Code::kUnavailable, "CUDA finds no GPU: " + reason);
}

Result<Gpu*> CudaLibrary::FindGpu(int ordinal) const {
  const Result<int> count = CountDevices();
  if (!count.ok()) return count.status();
  if (ordinal < 0 || ordinal >= *count) {
    return Status(Code::kInvalidArgument, "there is no GPU " + std::to_string(ordinal) +
                                              ": CUDA finds " + std::to_string(*count));
  }
  std::string reason;
  if (Gpu* gpu = gpu_(ordinal, &reason)) return gpu;
  return Status(Code::kUnavailable, "GPU " + std::to_string(ordinal) + " cannot be used: " + reason);
}

bool CudaLibrary::RunsOnStreams(const Codec& codec, DType dtype) const {
  return status_.ok() && stream_codecs_()->Runs(codec, dtype);
}

}  // namespace jaxccomp
