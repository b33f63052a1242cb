// The inner loops of one instruction set, as a table of functions; kernels.cc picks a table at run
// time. All tables give the same bytes. Private to delta/ and its tests.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "codec/delta/format.h"

namespace jaxccomp::delta {

// The map of changes where these are many: a bit per value by its class's probability, coded by
// kLanes interleaved rANS states. Value i is state i % kLanes's.
inline constexpr int kLanes = 32;
inline constexpr int kLaneBits = 15;                    // of a probability
inline constexpr uint32_t kLeastLaneState = 1 << 15;    // to 2^31, refilled by 16 bits

// By class: what a value that has not changed takes of 2^kLaneBits. Never 0; all of it: none changes.
struct LaneModel {
  uint32_t kept[16];
  // For division by it, and by what is left (Alverson 1991): x / f is x * reciprocal >> 32 >> shift.
  uint32_t reciprocal[32], shift[32];

  // `changed` is 0, or from 2 to 2^kLaneBits - 2: a reciprocal cannot divide by 1.
  void Set(int c, uint32_t changed) {
    constexpr uint32_t kAll = 1 << kLaneBits;
    kept[c] = kAll - changed;
    for (const auto& [at, size] : {std::pair(c, kAll - changed), std::pair(16 + c, changed)}) {
      if (size == 0) continue;
      const int bits = std::bit_width(size - 1);
      reciprocal[at] = static_cast<uint32_t>(((uint64_t{1} << (bits + 31)) + size - 1) / size);
      shift[at] = static_cast<uint32_t>(bits - 1);
    }
  }
};

struct Kernels {
  const char* name;
  // Sets bit i % 64 of word i / 64 where words differ; bits behind the last are 0. By the size of a word.
  void (*map2)(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map);
  void (*map4)(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map);
  // ClassOf of all values.
  void (*bfloat16_classes)(const std::byte* ref, int64_t count, int base, uint8_t* classes);
  void (*float16_classes)(const std::byte* ref, int64_t count, int base, uint8_t* classes);
  void (*float32_classes)(const std::byte* ref, int64_t count, int base, uint8_t* classes);
  // Of each granule: the sum of its values' weights. `classes` may be read up to the end of a granule.
  void (*sums)(const uint8_t* classes, int64_t count, const uint16_t* weights, uint32_t* sums);
  // Codes the map of `count` values: words from `end` downwards, the last value first, then states.
  // Returns the begin.
  std::byte* (*encode_lanes)(const uint64_t* map, const uint8_t* classes, int64_t count,
                             const LaneModel& model, std::byte* end);
  // The inverse. False where that is no encoding of so many. May read 64 bytes behind the end.
  bool (*decode_lanes)(std::span<const std::byte> from, const uint8_t* classes, int64_t count,
                       const LaneModel& model, uint64_t* map);
};

// The tables that this machine can run, the best first; never empty.
std::span<const Kernels* const> RunnableKernels();
inline const Kernels& BestKernels() { return *RunnableKernels().front(); }

}  // namespace jaxccomp::delta
