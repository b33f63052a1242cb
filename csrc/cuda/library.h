// Opens libjaxccomp_cuda.so at run time, so that one engine serves machines with CUDA and without it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/status.h"
#include "cuda/cuda_interface.h"

namespace jaxccomp {

class CudaLibrary {
 public:
  // What AddLibraryPath calls it.
  static constexpr std::string_view kName = "jaxccomp_cuda";

  // Opens the first that loads of the paths added for kName and of `sonames`. It must be of
  // `version`, the engine's own: the two share the layouts of C++ classes.
  CudaLibrary(std::string_view version, std::span<const char* const> sonames);
  // The process's own, opened by the first call.
  static CudaLibrary& Get();

  // Ok; or why it cannot be used, and what to install.
  const Status& status() const { return status_; }
  // Empty until it is known.
  const std::string& version() const { return version_; }
  // At least one, or the reason why there is none.
  Result<int> CountDevices() const;
  // The GPU of that ordinal: the same one each time, which lives as long as the process.
  Result<Gpu*> FindGpu(int ordinal) const;
  // Codecs for the streams of GPUs that FindGpu has found.
  const StreamCodecs* stream_codecs() const { return stream_codecs_(); }
  // Whether they have that codec for values of that type; false without the library.
  bool RunsOnStreams(const Codec& codec, DType dtype) const;

 private:
  std::string version_;
  Status status_;
  decltype(&jaxccomp_cuda_device_count) count_ = nullptr;
  decltype(&jaxccomp_cuda_gpu) gpu_ = nullptr;
  decltype(&jaxccomp_cuda_stream_codecs) stream_codecs_ = nullptr;
};

}  // namespace jaxccomp
