// The bodies of the kernels of "bf16" and "fp16", which convert between float32 and a narrower type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/host_device.h"
#include "cuda/kernels/common/lanes.cuh"
#include "cuda/kernels/common/values.cuh"

namespace jaxccomp::cuda {

struct CastJob {
  const std::byte* from;
  std::byte* to;
  int64_t count;
  int from_alignment, to_alignment;
};

// Converts From to To, one of which is float. A thread has kSteps runs of four values.
template <typename From, typename To, bool kAdd>
struct Cast {
  using Job = CastJob;
  static constexpr int kRun = 4;
  static constexpr int kSteps = 4;
  static constexpr int64_t kValuesOfCta = int64_t{kThreads} * kSteps * kRun;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    cuda::Run<From, kRun> values[kSteps] = {};
    cuda::Run<To, kRun> before[kSteps] = {};
    JAXCCOMP_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int64_t at = First(lanes, step);
      if (at + kRun > job.count) continue;
      values[step].Load(job.from + at * Real<From>::kBytes, job.from_alignment);
      if (kAdd) before[step].Load(job.to + at * Real<To>::kBytes, job.to_alignment);
    }
    JAXCCOMP_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int64_t at = First(lanes, step);
      if (at + kRun <= job.count) {
        cuda::Run<To, kRun> result;
        JAXCCOMP_UNROLL
        for (int i = 0; i < kRun; ++i) {
          const uint32_t bits = Real<From>::WidenExactly(values[step].Get(i));
          result.Set(i, Put<To, kAdd>(before[step].Get(i), bits));
        }
        result.Store(job.to + at * Real<To>::kBytes, job.to_alignment);
      } else {
        for (int64_t i = at; i < job.count; ++i) PutOne(job, i);
      }
    }
  }

 private:
  JAXCCOMP_DEVICE static int64_t First(const Lanes& lanes, int step) {
    return ((lanes.cta() * kSteps + step) * kThreads + lanes.thread()) * kRun;
  }
  // Encoded bytes may be unaligned.
  JAXCCOMP_HOST_DEVICE static void PutOne(const Job& job, int64_t i) {
    constexpr int kFrom = Real<From>::kBytes, kTo = Real<To>::kBytes;
    const uint32_t bits =
        Real<From>::WidenExactly(LoadNumber<kFrom>(job.from + i * kFrom, job.from_alignment));
    const uint32_t before = kAdd ? LoadNumber<kTo>(job.to + i * kTo, job.to_alignment) : 0;
    StoreNumber<kTo>(job.to + i * kTo, Put<To, kAdd>(before, bits), job.to_alignment);
  }
};

}  // namespace jaxccomp::cuda
