// Random bits of a value's position, as codec/random_bits.h defines them.
#pragma once

#include <cstdint>

#include "codec/random.h"
#include "common/host_device.h"

namespace jaxccomp::cuda {

// 16 bits for each of eight consecutive positions.
struct RandomEight {
  uint32_t word[4];
  JAXCCOMP_HOST_DEVICE uint32_t Get(int i) const { return word[i / 2] >> (i % 2 * 16) & 0xffff; }
};

// Those of `position` on. What goes past the end of one draw comes from the next; shifts stand for
// an index, which would put the words into memory.
JAXCCOMP_HOST_DEVICE inline RandomEight DrawEight(const RandomKey& key, uint64_t position) {
  const Philox4x32 first = Philox(key, position / 8);
  uint32_t w[8] = {first[0], first[1], first[2], first[3]};
  if (position % 8 == 0) return {{w[0], w[1], w[2], w[3]}};
  const Philox4x32 second = Philox(key, position / 8 + 1);
  JAXCCOMP_UNROLL
  for (int i = 0; i < 4; ++i) w[4 + i] = second[static_cast<size_t>(i)];
  if (position & 4) {
    JAXCCOMP_UNROLL
    for (int i = 0; i < 6; ++i) w[i] = w[i + 2];
  }
  if (position & 2) {
    JAXCCOMP_UNROLL
    for (int i = 0; i < 5; ++i) w[i] = w[i + 1];
  }
  if (position & 1) {
    JAXCCOMP_UNROLL
    for (int i = 0; i < 4; ++i) w[i] = w[i] >> 16 | w[i + 1] << 16;
  }
  return {{w[0], w[1], w[2], w[3]}};
}

// That of one position.
JAXCCOMP_HOST_DEVICE inline uint32_t DrawOne(const RandomKey& key, uint64_t position) {
  const Philox4x32 words = Philox(key, position / 8);
  const uint32_t place = static_cast<uint32_t>(position % 8);
  uint32_t word = words[0];
  JAXCCOMP_UNROLL
  for (uint32_t i = 1; i < 4; ++i) word = place / 2 == i ? words[i] : word;
  return word >> (place % 2 * 16) & 0xffff;
}

}  // namespace jaxccomp::cuda
