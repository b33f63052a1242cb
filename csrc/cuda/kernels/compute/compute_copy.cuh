// The bodies of the kernels that copy runs of bytes and that fill memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/host_device.h"
#include "cuda/kernels/common/lanes.cuh"
#include "cuda/kernels/common/memory.cuh"

namespace jaxccomp::cuda {

using Vector = Words<kVectorBytes>;

inline constexpr int kVectorsOfThread = 4;
inline constexpr int64_t kVectorsOfCta = int64_t{kThreads} * kVectorsOfThread;

// As many as the arguments of a kernel, 4 KB, have room for.
inline constexpr int kMaxCopyRuns = 120;

struct PlacedCopy {
  std::byte* to;
  const std::byte* from;
  int64_t bytes;
  int64_t first_cta;
};

struct CopyJob {
  int runs;
  PlacedCopy run[kMaxCopyRuns];
};

// A run in vectors that are aligned where they are written. Where they are not aligned where they are
// read, each is put together from the two that it lies in, which are inside the run as well.
struct CopyPlan {
  int64_t before;   // bytes before the first vector
  int64_t vectors;
  int shift;        // how far a vector begins behind an aligned address where it is read
};

JAXCCOMP_HOST_DEVICE inline int BehindAligned(const std::byte* at) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(at) % kVectorBytes);
}

JAXCCOMP_HOST_DEVICE inline CopyPlan PlanCopy(const std::byte* to, const std::byte* from,
                                              int64_t bytes) {
  CopyPlan plan = {};
  plan.before = (kVectorBytes - BehindAligned(to)) % kVectorBytes;
  plan.shift = BehindAligned(from + plan.before);
  if (plan.before < plan.shift) plan.before += kVectorBytes;
  const int64_t after = plan.shift == 0 ? 0 : kVectorBytes - plan.shift;
  plan.vectors = (bytes - plan.before - after) / kVectorBytes;
  if (bytes - plan.before - after < kVectorBytes) return {bytes, 0, 0};
  return plan;
}

inline int64_t CopyCtas(const std::byte* to, const std::byte* from, int64_t bytes) {
  const int64_t ctas = CeilDiv(PlanCopy(to, from, bytes).vectors, kVectorsOfCta);
  return ctas > 0 ? ctas : 1;
}

// Bytes [shift, shift + 16) of two vectors.
JAXCCOMP_DEVICE Vector Shifted(const Vector& low, const Vector& high, int shift) {
  uint32_t words[8];
  JAXCCOMP_UNROLL
  for (int i = 0; i < 4; ++i) {
    words[i] = low.word[i];
    words[4 + i] = high.word[i];
  }
  JAXCCOMP_UNROLL
  for (int i = 0; i < 6; ++i) words[i] = (shift & 8) != 0 ? words[i + 2] : words[i];
  JAXCCOMP_UNROLL
  for (int i = 0; i < 5; ++i) words[i] = (shift & 4) != 0 ? words[i + 1] : words[i];
  Vector out;
  JAXCCOMP_UNROLL
  for (int i = 0; i < 4; ++i) {
    out.word[i] = simt::FunnelRight(words[i], words[i + 1], 8 * static_cast<unsigned>(shift % 4));
  }
  return out;
}

struct CopyBytes {
  using Job = CopyJob;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const PlacedCopy& run = job.run[FindRun(job, lanes.cta())];
    const CopyPlan plan = PlanCopy(run.to, run.from, run.bytes);
    const int64_t cta = lanes.cta() - run.first_cta;
    if (cta == 0) CopyEdges(lanes, run, plan);
    const int64_t first = cta * kVectorsOfCta + lanes.thread();
    const std::byte* const from = run.from + plan.before - plan.shift;
    std::byte* const to = run.to + plan.before;
    Vector low[kVectorsOfThread] = {}, high[kVectorsOfThread] = {};
    JAXCCOMP_UNROLL
    for (int i = 0; i < kVectorsOfThread; ++i) {
      const int64_t vector = first + int64_t{kThreads} * i;
      if (vector >= plan.vectors) continue;
      low[i] = LoadOne<Vector>(from + vector * kVectorBytes);
      if (plan.shift != 0) high[i] = LoadOne<Vector>(from + (vector + 1) * kVectorBytes);
    }
    JAXCCOMP_UNROLL
    for (int i = 0; i < kVectorsOfThread; ++i) {
      const int64_t vector = first + int64_t{kThreads} * i;
      if (vector < plan.vectors) {
        StoreOne(to + vector * kVectorBytes, Shifted(low[i], high[i], plan.shift));
      }
    }
  }

 private:
  // The run that a CTA belongs to: the last one that begins no later.
  JAXCCOMP_DEVICE static int FindRun(const Job& job, int64_t cta) {
    int low = 0;
    int high = job.runs;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (job.run[middle].first_cta <= cta ? low : high) = middle;
    }
    return low;
  }
  JAXCCOMP_DEVICE static void CopyEdges(const Lanes& lanes, const PlacedCopy& run,
                                        const CopyPlan& plan) {
    const int64_t vector_bytes = plan.vectors * kVectorBytes;
    const int64_t edges = run.bytes - vector_bytes;
    for (int64_t i = lanes.thread(); i < edges; i += kThreads) {
      const int64_t at = i < plan.before ? i : i + vector_bytes;
      run.to[at] = run.from[at];
    }
  }
};

struct FillJob {
  std::byte* to;
  int64_t bytes;
  int64_t before;   // bytes before the first vector
  int64_t vectors;
  Vector pattern;   // from `to` on, again and again
  Vector vector;    // the same, from the first vector on
};

struct FillBytes {
  using Job = FillJob;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const int64_t first = lanes.cta() * kVectorsOfCta + lanes.thread();
    JAXCCOMP_UNROLL
    for (int i = 0; i < kVectorsOfThread; ++i) {
      const int64_t vector = first + int64_t{kThreads} * i;
      if (vector < job.vectors) StoreOne(job.to + job.before + vector * kVectorBytes, job.vector);
    }
    if (lanes.cta() != 0) return;
    const int64_t vector_bytes = job.vectors * kVectorBytes;
    for (int64_t i = lanes.thread(); i < job.bytes - vector_bytes; i += kThreads) {
      const int64_t at = i < job.before ? i : i + vector_bytes;
      const uint32_t word = job.pattern.word[at % kVectorBytes / 4];
      job.to[at] = static_cast<std::byte>(word >> (8 * (at % 4)));
    }
  }
};

}  // namespace jaxccomp::cuda
