// Error text for a process without a GPU that CUDA can use.
#pragma once

#include <string>

namespace jaxccomp::cuda {

// Returns why there is no GPU, and what to do. `said`: CUDA's error, empty if it found 0 GPUs. `driver` (0: none) and
// `library` are CUDA versions (13000 is 13.0).
std::string WhyNoGpus(const std::string& said, int driver, int library);

}  // namespace jaxccomp::cuda
