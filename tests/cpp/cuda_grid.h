// Runs the bodies of CUDA kernels (csrc/cuda) on the host, with a fiber for each thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/dtype.h"
#include "common/status.h"
#include "cuda/kernels/common/lanes.cuh"

namespace jaxccomp::testing {

// Replaces cuda::LaunchOn.
struct LaunchHere {
  template <typename Body>
  Status operator()(TypeTag<Body>, const typename Body::Job& job, int64_t ctas) const {
    auto kernel = [&](std::byte* shared) {
      cuda::Lanes lanes{reinterpret_cast<uint32_t*>(shared)};
      Body::Run(lanes, job);
    };
    simt::Emulator::Get().Launch(kernel, static_cast<unsigned>(ctas), cuda::kThreads,
                                 cuda::kSharedWords * sizeof(uint32_t));
    return Status::Ok();
  }
};

}  // namespace jaxccomp::testing
