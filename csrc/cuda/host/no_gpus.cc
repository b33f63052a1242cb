#include "cuda/host/no_gpus.h"

namespace jaxccomp::cuda {
namespace {

constexpr int kMajor = 1000;
constexpr int kOldestMajor = 12;   // the oldest CUDA with a library

std::string Version(int version) {
  return std::to_string(version / kMajor) + "." + std::to_string(version % kMajor / 10);
}

}  // namespace

std::string WhyNoGpus(const std::string& said, int driver, int library) {
  if (said.empty()) return "CUDA shows no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES";
  if (driver == 0) {
    return "no NVIDIA driver is installed (" + said + "); install it, or give the container its GPUs";
  }
  std::string why = said + "; the driver is of CUDA " + Version(driver) + ", this library of CUDA " +
                    Version(library);
  if (driver >= library) return why;
  why += ": update the driver";
  const int major = driver / kMajor;
  if (major < library / kMajor && major >= kOldestMajor) {
    why += ", or install what goes with it: pip install 'jaxccomp[cuda" + std::to_string(major) + "]'";
  }
  return why;
}

}  // namespace jaxccomp::cuda
