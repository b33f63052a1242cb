// How the kernels of the sparse codecs share a chunk: in tiles, 16 of which are a sub-block of the
// format. Values are the bits of halves or floats; all halves are as bfloat16 where only their
// magnitudes count, which are ordered as the integers are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "codec/sparse/layout.h"
#include "cuda/kernels/common/lanes.cuh"
#include "cuda/kernels/common/memory.cuh"
#include "cuda/kernels/common/prefix_sum.cuh"
#include "cuda/kernels/common/values.cuh"

namespace jaxccomp::cuda {

inline constexpr int kTileValues = 4096;
inline constexpr int kTilesOfSubBlock = static_cast<int>(sparse::kSubBlock) / kTileValues;
inline constexpr int kCtaWarps = kThreads / kWarp;

// A thread has kRows vectors of kRun values of a tile; neighbours have neighbouring ones.
template <typename T>
struct TileShape {
  static constexpr int kRun = kVectorBytes / Real<T>::kBytes;
  static constexpr int kRows = kTileValues / kThreads / kRun;

  // The first value, within the tile.
  JAXCCOMP_DEVICE static int First(const Lanes& lanes, int row) {
    return (row * kThreads + lanes.thread()) * kRun;
  }
};

template <typename T>
using WordOf = std::conditional_t<Real<T>::kBytes == 2, uint16_t, uint32_t>;

template <typename T>
inline constexpr uint32_t kMagnitudeOf = Real<T>::kBytes == 2 ? 0x7fff : 0x7fffffff;

// Values of a chunk that lie in one tile or sub-block.
JAXCCOMP_HOST_DEVICE inline int64_t ValuesIn(int64_t count, int64_t begin, int64_t most) {
  return count - begin < most ? count - begin : most;
}

// `run` values of a tile of `length` from `first` on; those that do not exist are 0.
template <typename T, int kRun>
JAXCCOMP_HOST_DEVICE inline Run<T, kRun> LoadRun(const std::byte* tile, int first, int length,
                                                 int alignment) {
  Run<T, kRun> run = {};
  if (first + kRun <= length) {
    run.Load(tile + static_cast<int64_t>(first) * Real<T>::kBytes, alignment);
  } else {
    JAXCCOMP_UNROLL
    for (int i = 0; i < kRun; ++i) run.Set(i, first + i < length ? LoadValue<T>(tile, first + i) : 0);
  }
  return run;
}
template <typename T, int kRun>
JAXCCOMP_HOST_DEVICE inline void StoreRun(const Run<T, kRun>& run, std::byte* tile, int first,
                                          int length, int alignment) {
  if (first + kRun <= length) {
    run.Store(tile + static_cast<int64_t>(first) * Real<T>::kBytes, alignment);
  } else {
    JAXCCOMP_UNROLL
    for (int i = 0; i < kRun; ++i) {
      if (first + i < length) StoreValue<T>(tile, first + i, run.Get(i));
    }
  }
}

// 64 bits at any address.
JAXCCOMP_HOST_DEVICE inline uint64_t LoadLong(const std::byte* at) {
  return LoadNumber<4>(at, 1) | static_cast<uint64_t>(LoadNumber<4>(at + 4, 1)) << 32;
}
JAXCCOMP_HOST_DEVICE inline void StoreLong(std::byte* at, uint64_t number) {
  StoreNumber<4>(at, static_cast<uint32_t>(number), 1);
  StoreNumber<4>(at + 4, static_cast<uint32_t>(number >> 32), 1);
}

// Of `bytes` bytes, those that a thread of a grid of `ctas` is to look after: f(byte).
template <typename F>
JAXCCOMP_DEVICE void ForShare(const Lanes& lanes, int64_t ctas, int64_t bytes, F&& f) {
  JAXCCOMP_NO_UNROLL
  for (int64_t i = lanes.cta() * kThreads + lanes.thread(); i < bytes; i += ctas * kThreads) f(i);
}

// A chunk that is not finite: the flag, and nothing but zeros.
JAXCCOMP_DEVICE void WriteNonFinite(const Lanes& lanes, int64_t ctas, std::byte* code,
                                    int64_t bytes) {
  ForShare(lanes, ctas, bytes, [&](int64_t i) {
    code[i] = i == 0 ? sparse::kNonFinite : std::byte{0};
  });
}

}  // namespace jaxccomp::cuda
