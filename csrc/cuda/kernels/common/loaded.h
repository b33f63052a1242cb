// The kernels of the library. CUDA loads a kernel when it is first launched, and may wait for all of
// the device's work to do so. RuntimeApi::Open loads all of them, so that no program waits, and no
// stream that is being captured meets a load.
#pragma once

#include <vector>

namespace jaxccomp::cuda {

inline std::vector<const void*>& AllKernels() {
  static std::vector<const void*> kernels;
  return kernels;
}

// Whatever starts `kKernel` reads kIsKnown<kKernel>, and so makes it known when the library is opened.
template <auto kKernel>
inline const bool kIsKnown = [] {
  AllKernels().push_back(reinterpret_cast<const void*>(kKernel));
  return true;
}();

}  // namespace jaxccomp::cuda
