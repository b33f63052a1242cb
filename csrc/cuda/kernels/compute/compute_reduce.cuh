// The body of the kernels that combine arrays value by value.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/host_device.h"
#include "cuda/kernels/common/arithmetic.cuh"
#include "cuda/kernels/common/tiles.cuh"

namespace jaxccomp::cuda {

inline constexpr int kMaxReduceSources = 128;

struct ReduceJob {
  TilePlan plan;
  std::byte* dst;
  bool begins_with_dst;   // which is then the first operand, before the sources
  int64_t divisor;         // 1: none
  int source_count;
  const std::byte* sources[kMaxReduceSources];
};

// Sources of type T make values of type D: T, float where T is a half type, or a half type where T is
// float. A thread reads its values of one source after the other, and writes when it has all.
template <typename T, typename D, typename Op>
struct ReduceElements {
  using Job = ReduceJob;
  static constexpr int kSmallest =
      static_cast<int>(sizeof(T) < sizeof(D) ? sizeof(T) : sizeof(D));
  static constexpr int kGroup = kVectorBytes / kSmallest;
  // Of groups: bits are combined as words.
  using From = std::conditional_t<combine::kOfBits<Op>, uint32_t, T>;
  using To = std::conditional_t<combine::kOfBits<Op>, uint32_t, D>;
  static constexpr int kLanes = kGroup * static_cast<int>(sizeof(T)) / static_cast<int>(sizeof(From));
  using H = Held<From>;
  // About 16 values are under way, in 64 bytes at most: of wide floating types, whose division and
  // products take registers as well, in 32.
  static constexpr int kMostGroups = kHasNaN<H> && sizeof(H) > 4 ? 2 : 4;
  static constexpr int kGroups = std::min(kMostGroups, 16 / kLanes);
  static constexpr int kSingles = std::min(16, kGroup * kGroups);
  static_assert(std::is_same_v<H, Held<To>>);

  JAXCCOMP_DEVICE static uint32_t Groups(const Job& job, const Lanes& lanes) {
    H acc[kGroups][kLanes] = {};
    Packed<From, kLanes> operands[kGroups] = {};
    const auto first = [&](int g) {
      return job.plan.before + Tiled<ReduceElements>::Group(lanes, g) * kGroup;
    };
    const auto within = [&](int g) {
      return Tiled<ReduceElements>::Group(lanes, g) < job.plan.groups;
    };
    const auto load = [&](const std::byte* source) {
      JAXCCOMP_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        if (within(g)) operands[g].Load(source + first(g) * static_cast<int64_t>(sizeof(T)));
      }
    };
    int s = 0;
    if (job.begins_with_dst) {
      Packed<To, kLanes> before[kGroups] = {};
      JAXCCOMP_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        if (within(g)) before[g].Load(job.dst + first(g) * static_cast<int64_t>(sizeof(D)));
      }
      JAXCCOMP_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        JAXCCOMP_UNROLL
        for (int i = 0; i < kLanes; ++i) acc[g][i] = Widen(before[g].Get(i));
      }
    } else {
      load(job.sources[s++]);
      JAXCCOMP_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        JAXCCOMP_UNROLL
        for (int i = 0; i < kLanes; ++i) acc[g][i] = Widen(operands[g].Get(i));
      }
    }
    JAXCCOMP_NO_UNROLL
    for (; s < job.source_count; ++s) {
      load(job.sources[s]);
      JAXCCOMP_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        JAXCCOMP_UNROLL
        for (int i = 0; i < kLanes; ++i) {
          acc[g][i] = Op::template Apply<false>(acc[g][i], Widen(operands[g].Get(i)));
        }
      }
    }
    if constexpr (kHasNaN<H>) {
      if (job.divisor > 1) {
        JAXCCOMP_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          JAXCCOMP_UNROLL
          for (int i = 0; i < kLanes; ++i) acc[g][i] = Divided<false>(acc[g][i], job.divisor);
        }
      }
    }
    uint32_t left = 0;
    JAXCCOMP_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      Packed<To, kLanes> result;
      bool nan = false;
      JAXCCOMP_UNROLL
      for (int i = 0; i < kLanes; ++i) {
        nan |= HoldsNaN(acc[g][i]);
        result.Set(i, NarrowNumber<To>(acc[g][i]));
      }
      if (!within(g)) continue;
      if (nan) {
        left |= 1u << g;
      } else {
        result.Store(job.dst + first(g) * static_cast<int64_t>(sizeof(D)));
      }
    }
    return left;
  }

  JAXCCOMP_DEVICE static void Compute(const Job& job, const Singles& singles) {
    Held<T> acc[kSingles] = {};
    Accumulate<false>(job, singles, acc);
    bool nan = false;
    JAXCCOMP_UNROLL
    for (int i = 0; i < kSingles; ++i) nan |= HoldsNaN(acc[i]);
    if (kHasNaN<Held<T>> && nan) Accumulate<true>(job, singles, acc);
    JAXCCOMP_UNROLL
    for (int i = 0; i < kSingles; ++i) {
      if (Within(singles, i)) Store(job, singles, i, Narrow<D>(acc[i]));
    }
  }

 private:
  JAXCCOMP_DEVICE static bool Within(const Singles& singles, int i) {
    return singles.first + i * singles.stride < singles.limit;
  }
  template <typename V>
  JAXCCOMP_DEVICE static V Load(const std::byte* values, const Singles& singles, int i) {
    return LoadOne<V>(values + (singles.first + i * singles.stride) *
                                   static_cast<int64_t>(sizeof(V)));
  }
  JAXCCOMP_DEVICE static void Store(const Job& job, const Singles& singles, int i, D value) {
    StoreOne(job.dst + (singles.first + i * singles.stride) * static_cast<int64_t>(sizeof(D)),
             value);
  }

  template <bool kExact>
  JAXCCOMP_DEVICE static void Accumulate(const Job& job, const Singles& singles,
                                         Held<T> (&acc)[kSingles]) {
    int s = 0;
    if (job.begins_with_dst) {
      JAXCCOMP_UNROLL
      for (int i = 0; i < kSingles; ++i) {
        if (Within(singles, i)) acc[i] = WidenExactly(Load<D>(job.dst, singles, i));
      }
    } else {
      const std::byte* const source = job.sources[s++];
      JAXCCOMP_UNROLL
      for (int i = 0; i < kSingles; ++i) {
        if (Within(singles, i)) acc[i] = WidenExactly(Load<T>(source, singles, i));
      }
    }
    JAXCCOMP_NO_UNROLL
    for (; s < job.source_count; ++s) {
      T values[kSingles] = {};
      JAXCCOMP_UNROLL
      for (int i = 0; i < kSingles; ++i) {
        if (Within(singles, i)) values[i] = Load<T>(job.sources[s], singles, i);
      }
      JAXCCOMP_UNROLL
      for (int i = 0; i < kSingles; ++i) {
        acc[i] = Op::template Apply<kExact>(acc[i], kExact ? WidenExactly(values[i])
                                                           : Widen(values[i]));
      }
    }
    if constexpr (kHasNaN<Held<T>>) {
      if (job.divisor <= 1) return;
      JAXCCOMP_UNROLL
      for (int i = 0; i < kSingles; ++i) acc[i] = Divided<kExact>(acc[i], job.divisor);
    }
  }
};

template <typename T, typename D, typename Op>
using ReduceArrays = Tiled<ReduceElements<T, D, Op>>;

}  // namespace jaxccomp::cuda
