// The body of the kernel of "bf16:rounding=stochastic", which rounds float32 stochastically to bfloat16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/half.h"
#include "common/host_device.h"
#include "cuda/kernels/common/lanes.cuh"
#include "cuda/kernels/common/random.cuh"
#include "cuda/kernels/common/values.cuh"

namespace jaxccomp::cuda {

struct RoundRandomlyJob {
  const std::byte* from;
  std::byte* to;
  int64_t count;
  int from_alignment, to_alignment;
  const uint32_t* step_dev;   // for LoadStep
};

// A thread has kSteps runs of eight values, for which it draws random bits at once.
struct RoundRandomly {
  using Job = RoundRandomlyJob;
  static constexpr int kRun = 8;
  static constexpr int kSteps = 1;
  static constexpr int64_t kValuesOfCta = int64_t{kThreads} * kSteps * kRun;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const uint64_t random_step = LoadStep(job.step_dev);
    cuda::Run<float, kRun> values[kSteps] = {};
    JAXCCOMP_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int64_t at = First(lanes, step);
      if (at + kRun > job.count) continue;
      values[step].Load(job.from + at * kFromBytes, job.from_alignment);
    }
    JAXCCOMP_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int64_t at = First(lanes, step);
      if (at + kRun <= job.count) {
        const RandomEight random = DrawEight(random_step, at);
        cuda::Run<BFloat16, kRun> result;
        JAXCCOMP_UNROLL
        for (int i = 0; i < kRun; ++i) result.Set(i, Rounded(values[step].Get(i), random.Get(i)));
        result.Store(job.to + at * kToBytes, job.to_alignment);
      } else {
        for (int64_t i = at; i < job.count; ++i) {
          const uint32_t bits =
              LoadNumber<kFromBytes>(job.from + i * kFromBytes, job.from_alignment);
          const uint32_t random = DrawOne(random_step, i);
          StoreNumber<kToBytes>(job.to + i * kToBytes, Rounded(bits, random), job.to_alignment);
        }
      }
    }
  }

 private:
  static constexpr int kFromBytes = Real<float>::kBytes;
  static constexpr int kToBytes = Real<BFloat16>::kBytes;

  JAXCCOMP_DEVICE static int64_t First(const Lanes& lanes, int step) {
    return ((lanes.cta() * kSteps + step) * kThreads + lanes.thread()) * kRun;
  }
  JAXCCOMP_HOST_DEVICE static uint32_t Rounded(uint32_t bits, uint32_t random) {
    return ToBFloat16(__builtin_bit_cast(float, bits), random).bits;
  }
};

}  // namespace jaxccomp::cuda
