// The threads of a kernel. A kernel's body gets a `Lanes` with the thread's indices and its exchanges with other
// threads. All threads of a CTA must make the same sequence of exchanges.
#pragma once

#include <cstdint>

#include "common/host_device.h"
#include "cuda/kernels/common/simt.cuh"

namespace jaxccomp::cuda {

inline constexpr int kThreads = 256;   // of every CTA
inline constexpr int kWarp = 32;
inline constexpr int kSharedWords = 4 * kThreads / kWarp;

struct Lanes {
  uint32_t* words;

  JAXCCOMP_DEVICE int64_t cta() const { return simt::Block(); }
  JAXCCOMP_DEVICE int thread() const { return static_cast<int>(simt::Thread()); }
  // The value of lane (lane ^ mask) of the warp.
  JAXCCOMP_DEVICE uint32_t Xor(uint32_t value, int mask) const {
    return simt::Shuffle(value, simt::Lane() ^ static_cast<unsigned>(mask));
  }
  // Bit l is the vote of lane l.
  JAXCCOMP_DEVICE uint32_t Ballot(bool vote) const { return simt::Ballot(vote); }
  // Waits for all threads of the CTA.
  JAXCCOMP_DEVICE void Sync() const { simt::Sync(); }
  // kSharedWords for the whole CTA, aligned to 16 bytes.
  JAXCCOMP_DEVICE uint32_t* shared() const { return words; }
};

// Replaces each of kCount numbers by its maximum over groups of `threads` consecutive threads, a power of two. Call it
// once per kernel: it does not wait until all threads have read the shared memory.
template <int kCount>
JAXCCOMP_DEVICE void Greatest(Lanes& lanes, uint32_t (&values)[kCount], int threads) {
  constexpr int kWarps = kThreads / kWarp;
  static_assert(kCount * kWarps <= kSharedWords);
  for (int mask = 1; mask < threads && mask < kWarp; mask *= 2) {
    JAXCCOMP_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const uint32_t other = lanes.Xor(values[i], mask);
      values[i] = values[i] > other ? values[i] : other;
    }
  }
  if (threads <= kWarp) return;
  uint32_t* const shared = lanes.shared();
  if (lanes.thread() % kWarp == 0) {
    JAXCCOMP_UNROLL
    for (int i = 0; i < kCount; ++i) shared[i * kWarps + lanes.thread() / kWarp] = values[i];
  }
  lanes.Sync();
  const int first = lanes.thread() / threads * (threads / kWarp);
  JAXCCOMP_UNROLL
  for (int i = 0; i < kCount; ++i) {
    for (int warp = first; warp < first + threads / kWarp; ++warp) {
      const uint32_t other = shared[i * kWarps + warp];
      values[i] = values[i] > other ? values[i] : other;
    }
  }
}

#if defined(__CUDACC__)

// A body is a class with a type Job, its arguments, and Run(lanes, job).
template <typename Body>
__global__ void __launch_bounds__(kThreads) Kernel(const __grid_constant__ typename Body::Job job) {
  __shared__ __align__(16) uint32_t words[kSharedWords];
  Lanes lanes{words};
  Body::Run(lanes, job);
}

#endif

}  // namespace jaxccomp::cuda
