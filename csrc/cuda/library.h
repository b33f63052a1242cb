// Opens libjaxccomp_cuda.so at run time, so that one engine serves machines with and without CUDA.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/status.h"
#include "cuda/cuda_interface.h"

namespace jaxccomp {

class CudaLibrary {
 public:
  // Its name for AddLibraryPath.
  static constexpr std::string_view kName = "jaxccomp_cuda";

  // Opens the first library that loads among the paths added for kName and `sonames`. Its version must be `version`,
  // the engine's: the two share the layouts of C++ classes.
  CudaLibrary(std::string_view version, std::span<const char* const> sonames);
  // The process's library, opened by the first call.
  static CudaLibrary& Get();

  // Ok; or why it cannot be used, and what to install.
  const Status& status() const { return status_; }
  // Empty if no library was opened.
  const std::string& version() const { return version_; }
  // At least 1, or an error with the reason.
  Result<int> CountDevices() const;
  // The GPU with this ordinal: one object for the life of the process.
  Result<Gpu*> FindGpu(int ordinal) const;
  // The stream codecs of GPUs for which FindGpu was called.
  const StreamCodecs* stream_codecs() const { return stream_codecs_(); }
  // Whether there is a stream codec for the codec and dtype; false without the library.
  bool RunsOnStreams(const Codec& codec, DType dtype) const;

 private:
  std::string version_;
  Status status_;
  decltype(&jaxccomp_cuda_device_count) count_ = nullptr;
  decltype(&jaxccomp_cuda_gpu) gpu_ = nullptr;
  decltype(&jaxccomp_cuda_stream_codecs) stream_codecs_ = nullptr;
};

}  // namespace jaxccomp
