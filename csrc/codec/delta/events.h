// Codes few changes with a range coder: the position of each change, then its step.
//
// A value's hazard is -ln(1 - p), with the change probability p of its reference's class. For each group of
// granules, a bit says whether there is another change, with probability 1 - exp(-sum of the remaining hazards).
// The change's position is then coded with probabilities proportional to the hazards. So the cost of a change
// depends only on its reference's class, for any mixture of classes. The steps follow, with adaptive probabilities.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/delta/format.h"
#include "codec/delta/model.h"

namespace jaxccomp::delta {

// Hazards scaled to integers, the largest to kGreatestWeight.
inline constexpr uint32_t kGreatestWeight = 4096;
struct Weights {
  explicit Weights(const Model& model);
  uint16_t of[kClasses] = {};
  uint64_t unit = 0;   // the hazard of weight 1, times 2^42
};

// log2 of the granules in a group; chosen so that a group seldom has more than one change.
inline constexpr int kMaxGroupBits = 6;
int GroupBits(int64_t changes, int64_t granules);

// `classes`: of all values. `sums`: the weight of each granule. `changes` has `count` changes. Returns the end
// of the code; `at` has room for MaxEventBytes.
int64_t MaxEventBytes(int64_t changes, int64_t values);
std::byte* EncodeEvents(std::span<const uint64_t> map, std::span<const uint32_t> sums,
                        const uint8_t* classes, const Weights& weights, int group_bits,
                        const Changes& changes, int64_t count, std::byte* at);
// Sets the map and the changes. False if there are not exactly `count`, or bytes are left.
bool DecodeEvents(std::span<const std::byte> from, std::span<const uint32_t> sums,
                  const uint8_t* classes, const Weights& weights, int group_bits,
                  int64_t count, std::span<uint64_t> map, const Changes& changes);

}  // namespace jaxccomp::delta
