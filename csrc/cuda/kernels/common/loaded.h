// The list of the library's kernels. CUDA loads a kernel when it is first launched, and may wait for all work of the
// device to do so. RuntimeApi::Open loads all kernels, so that no program waits, and no kernel is loaded while a
// stream is being captured.
#pragma once

#include <vector>

namespace jaxccomp::cuda {

inline std::vector<const void*>& AllKernels() {
  static std::vector<const void*> kernels;
  return kernels;
}

// A function that launches `kKernel` must use kIsKnown<kKernel>, which adds the kernel to AllKernels when the library
// is loaded.
template <auto kKernel>
inline const bool kIsKnown = [] {
  AllKernels().push_back(reinterpret_cast<const void*>(kKernel));
  return true;
}();

}  // namespace jaxccomp::cuda
