// How the threads of a kernel share values that are computed one by one.
//
// Where all arrays can be reached in accesses of 16 bytes from the same value on, threads take groups
// of values, as many as the smallest type has in 16 bytes, and one more CTA takes the values before
// the first group and after the last. Else they take single values, next to each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "common/host_device.h"
#include "cuda/kernels/common/lanes.cuh"
#include "cuda/kernels/common/memory.cuh"

namespace jaxccomp::cuda {

struct TilePlan {
  int64_t count;
  int64_t before;      // values before the first group
  int64_t groups;
  int64_t group_ctas;  // 0: all values are single
  int64_t ctas;
};

// Values that a thread computes, at `first`, first + stride, ...: those before `limit`.
struct Singles { int64_t first, stride, limit; };

struct TiledArray {
  const void* at;
  int64_t value_bytes;
};

// The first value from which on all arrays are aligned to 16 bytes; `group` when there is none.
inline int64_t FirstAligned(std::span<const TiledArray> arrays, int64_t group) {
  for (int64_t first = 0; first < group; ++first) {
    bool aligned = true;
    for (const TiledArray& array : arrays) {
      const auto address = reinterpret_cast<uintptr_t>(array.at);
      aligned &= (address + static_cast<uintptr_t>(first * array.value_bytes)) % kVectorBytes == 0;
    }
    if (aligned) return first;
  }
  return group;
}

// `Body` has kGroup, the values of a group; kGroups of a thread; and kSingles of a thread.
template <typename Body>
TilePlan PlanTiles(int64_t count, std::span<const TiledArray> arrays) {
  TilePlan plan = {};
  plan.count = count;
  const int64_t first = FirstAligned(arrays, Body::kGroup);
  if (first < Body::kGroup && first < count) {
    plan.before = first;
    plan.groups = (count - first) / Body::kGroup;
  }
  if (plan.groups == 0) {
    plan.before = 0;
    plan.ctas = CeilDiv(count, int64_t{kThreads} * Body::kSingles);
    return plan;
  }
  plan.group_ctas = CeilDiv(plan.groups, int64_t{kThreads} * Body::kGroups);
  const bool rest = plan.groups * Body::kGroup < count;
  plan.ctas = plan.group_ctas + (rest ? 1 : 0);
  return plan;
}

// The body of a kernel. Elements::Groups(job, lanes) computes a thread's groups, and returns a bit
// for each that it leaves to Elements::Compute(job, singles).
template <typename Elements>
struct Tiled {
  using Job = typename Elements::Job;
  static constexpr int kGroup = Elements::kGroup, kGroups = Elements::kGroups,
                       kSingles = Elements::kSingles;

  JAXCCOMP_DEVICE static void Run(Lanes& lanes, const Job& job) {
    const TilePlan& plan = job.plan;
    const int64_t after = plan.before + plan.groups * kGroup;
    uint32_t left = 1;
    int64_t first = lanes.cta() * kThreads * kSingles + lanes.thread();
    int64_t stride = kThreads, limit = plan.count, next = 0;
    if (lanes.cta() < plan.group_ctas) {
      left = Elements::Groups(job, lanes);
      first = plan.before + Group(lanes, 0) * kGroup;
      stride = 1;
      next = int64_t{kThreads} * kGroup;
    } else if (plan.group_ctas > 0) {
      first = lanes.thread() < plan.before ? lanes.thread() : after - plan.before + lanes.thread();
      limit = first < plan.count ? first + 1 : first;
    }
    JAXCCOMP_NO_UNROLL
    for (; left != 0; left &= left - 1) {
      const int64_t at = first + simt::TrailingZeros(left) * next;
      Elements::Compute(job, Singles{at, stride, next != 0 ? at + kGroup : limit});
    }
  }

  // The number of a thread's group.
  JAXCCOMP_DEVICE static int64_t Group(const Lanes& lanes, int i) {
    return (lanes.cta() * kGroups + i) * kThreads + lanes.thread();
  }
};

// kCount values of T, in registers, as they lie in memory.
template <typename T, int kCount>
struct Packed {
  static constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  static_assert(kBytes % kVectorBytes == 0);
  Words<kVectorBytes> vectors[kBytes / kVectorBytes];

  JAXCCOMP_HOST_DEVICE void Load(const std::byte* at) {
    JAXCCOMP_UNROLL
    for (int v = 0; v < kBytes / kVectorBytes; ++v) {
      vectors[v] = LoadOne<Words<kVectorBytes>>(at + v * kVectorBytes);
    }
  }
  JAXCCOMP_HOST_DEVICE void Store(std::byte* at) const {
    JAXCCOMP_UNROLL
    for (int v = 0; v < kBytes / kVectorBytes; ++v) StoreOne(at + v * kVectorBytes, vectors[v]);
  }
  JAXCCOMP_HOST_DEVICE T Get(int i) const {
    const int byte = i * static_cast<int>(sizeof(T));
    if constexpr (sizeof(T) < 4) {
      const uint32_t word = Word(byte) >> (8 * (byte % 4));
      if constexpr (sizeof(T) == 2) {
        return __builtin_bit_cast(T, static_cast<uint16_t>(word));
      } else {
        return __builtin_bit_cast(T, static_cast<uint8_t>(word));
      }
    } else {
      struct { uint32_t x[sizeof(T) / 4]; } words;
      JAXCCOMP_UNROLL
      for (int w = 0; w < static_cast<int>(sizeof(T)) / 4; ++w) words.x[w] = Word(byte + 4 * w);
      return __builtin_bit_cast(T, words);
    }
  }
  // Once for each value, in order.
  JAXCCOMP_HOST_DEVICE void Set(int i, T value) {
    const int byte = i * static_cast<int>(sizeof(T));
    if constexpr (sizeof(T) < 4) {
      using Raw = std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>;
      const uint32_t raw = __builtin_bit_cast(Raw, value);
      uint32_t& word = Word(byte);
      word = byte % 4 == 0 ? raw : word | raw << (8 * (byte % 4));
    } else {
      struct Raw { uint32_t x[sizeof(T) / 4]; };
      const Raw words = __builtin_bit_cast(Raw, value);
      JAXCCOMP_UNROLL
      for (int w = 0; w < static_cast<int>(sizeof(T)) / 4; ++w) Word(byte + 4 * w) = words.x[w];
    }
  }

 private:
  JAXCCOMP_HOST_DEVICE uint32_t& Word(int byte) {
    return vectors[byte / kVectorBytes].word[byte % kVectorBytes / 4];
  }
  JAXCCOMP_HOST_DEVICE const uint32_t& Word(int byte) const {
    return vectors[byte / kVectorBytes].word[byte % kVectorBytes / 4];
  }
};

}  // namespace jaxccomp::cuda
