// The inner loops of one instruction set, as a table of functions; kernels.cc picks a table at run
// time. All tables give the same bytes. Private to delta/ and its tests.
//
// Bit i of an array of bits is bit i % 64 of word i / 64; bits after the last one are 0. Kernels may read and
// write up to kPad entries past the end of an array.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "codec/delta/bit_io.h"
#include "codec/delta/format.h"

namespace jaxccomp::delta {

// Bits are coded by interleaved rANS states, bit i by state i % lanes. Each step of a state waits for the state's
// previous step: kMaxLanes states keep a processor busy; for few changes, kFewLanes states take fewer bytes.
inline constexpr int kFewLanes = 32, kMaxLanes = 64;
inline constexpr int kLaneBits = 15;                    // of a probability
inline constexpr uint32_t kLaneScale = 1 << kLaneBits;
inline constexpr uint32_t kMinLaneState = 1 << 15;    // to 2^31, refilled by 16 bits

// The probability of a 0 by class, in units of 1 / kLaneScale: 2 to kLaneScale - 2 (the reciprocals need divisors above
// 1), or kLaneScale.
struct LaneModel {
  uint32_t zero[kClasses];
  // Reciprocals of the sizes f of 0 and of 1 (Alverson 1991): x / f is x * reciprocal >> 32 >> shift.
  uint32_t reciprocal[2 * kClasses], shift[2 * kClasses];

  void Set(int c, uint32_t zero_size) {
    zero[c] = zero_size;
    for (const auto& [at, size] :
         {std::pair(c, zero_size), std::pair(kClasses + c, kLaneScale - zero_size)}) {
      if (size == 0) continue;
      const int bits = std::bit_width(size - 1);
      reciprocal[at] = static_cast<uint32_t>(((uint64_t{1} << (bits + 31)) + size - 1) / size);
      shift[at] = static_cast<uint32_t>(bits - 1);
    }
  }
};

struct Kernels {
  const char* name;

  // Sets the bits of words that differ, and returns the number of these words. map2 and map4: words of 2 and 4 bytes.
  int64_t (*map2)(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map);
  int64_t (*map4)(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map);
  // Computes ClassOf (format.h) for all values of `ref`.
  void (*bfloat16_classes)(const std::byte* ref, int64_t count, int base, uint8_t* classes);
  void (*float16_classes)(const std::byte* ref, int64_t count, int base, uint8_t* classes);
  void (*float32_classes)(const std::byte* ref, int64_t count, int base, uint8_t* classes);
  // Computes lengths and directions of the steps of changed values.
  void (*steps2)(const std::byte* src, const std::byte* ref, const uint64_t* map, int64_t count,
                 const Changes& changes);
  void (*steps4)(const std::byte* src, const std::byte* ref, const uint64_t* map, int64_t count,
                 const Changes& changes);
  // The inverse: `values` has the references on entry, and the new values afterwards.
  void (*advance2)(std::byte* values, const uint64_t* map, int64_t count, const Changes& changes);
  void (*advance4)(std::byte* values, const uint64_t* map, int64_t count, const Changes& changes);

  // For each granule, the sum of its values' weights.
  void (*sums)(const uint8_t* classes, int64_t count, const uint16_t* weights, uint32_t* sums);
  // The number of values of each class.
  void (*count)(const uint8_t* classes, int64_t count, uint32_t* counts);
  // Computes SymbolOf (symbols.h) for all lengths.
  void (*symbols)(const uint32_t* lengths, int64_t count, uint8_t* symbols);
  // Sets the bits of numbers greater than `than`.
  void (*above)(const uint8_t* numbers, int64_t count, int than, uint64_t* bits);
  // Compacts the entries with a set bit to `to`; returns their number.
  int64_t (*keep)(const uint64_t* bits, const uint8_t* from, int64_t count, uint8_t* to);
  // For each bit: if set, the next entry of `from` plus 1; else 0.
  void (*climb)(const uint64_t* bits, const uint8_t* from, int64_t count, uint8_t* to);
  // Symbols minus the pivots of their classes, modulo 256; a bit is set for a difference that is not negative.
  void (*split)(const uint8_t* symbols, const uint8_t* classes, int64_t count,
                const uint8_t* pivots, uint8_t* differences, uint64_t* bits);
  // The inverse: the pivot plus the next of `ups` if the bit is set, else plus the complement of the next of
  // `downs`.
  void (*join)(const uint64_t* bits, const uint8_t* ups, const uint8_t* downs,
               const uint8_t* classes, const uint8_t* pivots, int64_t count, uint8_t* symbols);
  // Write the low bits of lengths, which symbols do not contain; read them, and compute the lengths.
  void (*put_low)(const uint32_t* lengths, const uint8_t* symbols, int64_t count, BitWriter* to);
  void (*take_low)(const uint8_t* symbols, int64_t count, BitReader* from, uint32_t* lengths);

  // Encode bits from the last to the first, as words from `end` downwards. Return the start of the words. `few` and
  // `max` have kFewLanes and kMaxLanes states.
  std::byte* (*encode_few)(const uint64_t* bits, const uint8_t* classes, int64_t count,
                           const LaneModel& model, uint32_t* states, std::byte* end);
  std::byte* (*encode_max)(const uint64_t* bits, const uint8_t* classes, int64_t count,
                            const LaneModel& model, uint32_t* states, std::byte* end);
  // The inverse. Return the end of the bytes read, or nullptr if they exceed `end`. `zero`: LaneModel::zero.
  const std::byte* (*decode_few)(const std::byte* at, const std::byte* end,
                                 const uint8_t* classes, int64_t count, const uint32_t* zero,
                                 uint32_t* states, uint64_t* bits);
  const std::byte* (*decode_max)(const std::byte* at, const std::byte* end,
                                  const uint8_t* classes, int64_t count, const uint32_t* zero,
                                  uint32_t* states, uint64_t* bits);
};

// The tables that this machine can run, the fastest first; never empty.
std::span<const Kernels* const> RunnableKernels();
inline const Kernels& BestKernels() { return *RunnableKernels().front(); }

}  // namespace jaxccomp::delta
