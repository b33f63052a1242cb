// The random numbers of random.h in bulk: 16 bits for each position of a tensor.
#pragma once

#include <cstdint>
#include <span>

#include "codec/codec.h"

namespace jaxccomp {

// How many numbers more than asked for `room` must hold.
inline constexpr int64_t kRandomRoom = 128;

// The numbers of `count` positions from `first` on: that of position p is the (p % 8)-th 16-bit
// piece, lowest bits first, of Philox(key, p / 8). They are written into `room`; returns where.
const uint16_t* RandomBits(const RandomKey& key, int64_t first, int64_t count, uint16_t* room);

// The same numbers from one instruction set: `groups` (a multiple of 8) times the eight of
// index, index + 1, ...
struct RandomKernels {
  const char* name;
  void (*fill)(const RandomKey& key, uint64_t index, int64_t groups, uint16_t* out);
};
// Those that this machine can run, the best first.
std::span<const RandomKernels* const> RunnableRandomKernels();

}  // namespace jaxccomp
