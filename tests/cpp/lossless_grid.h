// Runs the kernels of "lossless" (csrc/cuda) on the host.
#pragma once

#include <cstdint>

#include "cuda/kernels/common/simt.cuh"

namespace jaxccomp::testing {

// Replaces the launcher of cuda/kernels/lossless/lossless.cu.
struct EmulatedLauncher {
  template <typename Kernel>
  int Launch(const Kernel& kernel, int64_t blocks, int shared_bytes) {
    last_blocks = blocks;
    simt::Emulator::Get().Launch(kernel, static_cast<unsigned>(blocks), Kernel::kLaunchThreads,
                                 shared_bytes);
    return 0;
  }
  template <typename Kernel>
  int64_t Resident(int) { return 3; }
  int64_t last_blocks = 0;
};

}  // namespace jaxccomp::testing
