// Random bits for a value's position with the key {step, 0, 0}, as defined in codec/random_bits.h.
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

// The step of a job: two words in device memory, the lower first.
JAXCCOMP_HOST_DEVICE inline uint64_t LoadStep(const uint32_t* step_dev) {
  return step_dev[0] | static_cast<uint64_t>(step_dev[1]) << 32;
}

// The random bits of eight positions from `position`, a multiple of eight.
JAXCCOMP_HOST_DEVICE inline RandomEight DrawEight(uint64_t step, int64_t position) {
  const Philox4x32 words = Philox({.step = step}, static_cast<uint64_t>(position) / 8);
  return {{words[0], words[1], words[2], words[3]}};
}

// The random bits of one position.
JAXCCOMP_HOST_DEVICE inline uint32_t DrawOne(uint64_t step, int64_t position) {
  const Philox4x32 words = Philox({.step = step}, static_cast<uint64_t>(position) / 8);
  const uint32_t place = static_cast<uint32_t>(position % 8);
  uint32_t word = words[0];
  JAXCCOMP_UNROLL
  for (uint32_t i = 1; i < 4; ++i) word = place / 2 == i ? words[i] : word;
  return word >> (place % 2 * 16) & 0xffff;
}

}  // namespace jaxccomp::cuda
