// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). A number depends only on key and position, not on chunks, threads, machine or
// order.
#pragma once

#include <array>
#include <cstdint>

#include "codec/codec.h"
#include "common/host_device.h"

namespace jaxccomp {

using Philox4x32 = std::array<uint32_t, 4>;

// The 128 random bits of `counter` under the key.
JAXCCOMP_HOST_DEVICE inline Philox4x32 Philox(Philox4x32 counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(a)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// The `index`-th 128 bits of a tensor, a rank and a step.
JAXCCOMP_HOST_DEVICE inline Philox4x32 Philox(const RandomKey& key, uint64_t index) {
  return Philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), key.tensor,
                 key.rank},
                static_cast<uint32_t>(key.step), static_cast<uint32_t>(key.step >> 32));
}

}  // namespace jaxccomp
