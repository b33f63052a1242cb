// Encoding with a random key that another kernel makes: it lies in device memory, and is read when the
// kernel runs. A body of its own, so that those whose key is known beforehand stay as they are.
#pragma once

#include <cstdint>

#include "cuda/kernels/common/blocks.cuh"

namespace jaxccomp::cuda {

struct EncodeWithDeviceSeedJob {
  EncodeBlocksJob blocks;     // with any key
  const uint32_t* step_dev;   // the key's step: two words, the lower first
};

template <typename Coder, typename T>
struct EncodeWithDeviceSeed {
  using Job = EncodeWithDeviceSeedJob;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const uint64_t step = job.step_dev[0] | static_cast<uint64_t>(job.step_dev[1]) << 32;
    EncodeBlocks<Coder, T>::Run(lanes, job.blocks, {step, 0, 0});
  }
};

}  // namespace jaxccomp::cuda
