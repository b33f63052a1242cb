// The body of the kernels that add what a lossy code loses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/host_device.h"
#include "cuda/kernels/common/arithmetic.cuh"
#include "cuda/kernels/common/tiles.cuh"

namespace jaxccomp::cuda {

struct ResidualJob {
  TilePlan plan;
  std::byte* dst;
  const std::byte* before;   // or null
  const std::byte* values;
  const std::byte* decoded;
  int64_t times;
};

// The largest number that is finite.
template <typename T>
JAXCCOMP_HOST_DEVICE constexpr Held<T> MostOf() {
  if constexpr (std::is_same_v<T, Float16>) return 65504;
  if constexpr (std::is_same_v<T, BFloat16>) return 0x1.fep127f;
  return std::numeric_limits<Held<T>>::max();
}

template <typename T>
struct ResidualElements {
  using Job = ResidualJob;
  using H = Held<T>;
  static constexpr int kGroup = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kGroups = 2;
  static constexpr int kSingles = 4;
  static constexpr int64_t kBytes = sizeof(T);

  JAXCCOMP_DEVICE static uint32_t Groups(const Job& job, const Lanes& lanes) {
    Packed<T, kGroup> before[kGroups] = {}, values[kGroups] = {}, decoded[kGroups] = {};
    JAXCCOMP_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const int64_t group = Tiled<ResidualElements>::Group(lanes, g);
      if (group >= job.plan.groups) continue;
      const int64_t at = (job.plan.before + group * kGroup) * kBytes;
      if (job.before != nullptr) before[g].Load(job.before + at);
      values[g].Load(job.values + at);
      decoded[g].Load(job.decoded + at);
    }
    const H times = static_cast<H>(job.times);
    JAXCCOMP_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      Packed<T, kGroup> result;
      JAXCCOMP_UNROLL
      for (int i = 0; i < kGroup; ++i) {
        result.Set(i, One(before[g].Get(i), values[g].Get(i), decoded[g].Get(i), times));
      }
      const int64_t group = Tiled<ResidualElements>::Group(lanes, g);
      if (group >= job.plan.groups) continue;
      result.Store(job.dst + (job.plan.before + group * kGroup) * kBytes);
    }
    return 0;
  }

  JAXCCOMP_DEVICE static void Compute(const Job& job, const Singles& singles) {
    const H times = static_cast<H>(job.times);
    T before[kSingles] = {}, values[kSingles] = {}, decoded[kSingles] = {};
    JAXCCOMP_UNROLL
    for (int i = 0; i < kSingles; ++i) {
      const int64_t index = singles.first + i * singles.stride;
      if (index >= singles.limit) continue;
      if (job.before != nullptr) before[i] = LoadOne<T>(job.before + index * kBytes);
      values[i] = LoadOne<T>(job.values + index * kBytes);
      decoded[i] = LoadOne<T>(job.decoded + index * kBytes);
    }
    JAXCCOMP_UNROLL
    for (int i = 0; i < kSingles; ++i) {
      const int64_t index = singles.first + i * singles.stride;
      if (index >= singles.limit) continue;
      StoreOne(job.dst + index * kBytes, One(before[i], values[i], decoded[i], times));
    }
  }

 private:
  // What is not finite counts as 0, NaN too: none comes out.
  JAXCCOMP_HOST_DEVICE static T One(T before, T value, T decoded, H times) {
    const H lost = ZeroAbove((Widen(value) - Widen(decoded)) * times);
    return NarrowNumber<T>(ZeroAbove(Widen(before) + lost));
  }
  JAXCCOMP_HOST_DEVICE static H ZeroAbove(H x) {
    using I = Ieee<H>;
    return I::From(I::Of(x) & I::kMagnitude) <= MostOf<T>() ? x : H{0};
  }
};

template <typename T>
using AddResidualArrays = Tiled<ResidualElements<T>>;

}  // namespace jaxccomp::cuda
