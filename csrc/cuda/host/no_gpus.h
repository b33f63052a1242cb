// What to tell who has no GPU that CUDA can use.
#pragma once

#include <string>

namespace jaxccomp::cuda {

// Why there is none, and what to do: from what CUDA said (empty: nothing, it has found 0), and the
// versions of the driver (0: there is none) and of this library, as CUDA numbers them (13000 is 13.0).
std::string WhyNoGpus(const std::string& said, int driver, int library);

}  // namespace jaxccomp::cuda
