// The random numbers of random.h in bulk: 16 bits per position in a tensor.
#pragma once

#include <cstdint>
#include <span>

#include "codec/codec.h"

namespace jaxccomp {

// Numbers that `room` must hold in addition to `count`.
inline constexpr int64_t kRandomRoom = 128;

// The numbers of positions [first, first + count). Position p has the (p % 8)-th 16-bit piece, lowest
// bits first, of Philox(key, p / 8). Writes them into `room`; returns the first number's address.
const uint16_t* RandomBits(const RandomKey& key, int64_t first, int64_t count, uint16_t* room);

// The same numbers with one instruction set: eight for each of the counters index to index + groups - 1;
// `groups` is a multiple of 8.
struct RandomKernels {
  const char* name;
  void (*fill)(const RandomKey& key, uint64_t index, int64_t groups, uint16_t* out);
};
// The tables that this machine can run, the fastest first.
std::span<const RandomKernels* const> RunnableRandomKernels();

}  // namespace jaxccomp
