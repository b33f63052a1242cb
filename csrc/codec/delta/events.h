// Changes where these are few: where the next one is, and how it differs, by a range coder.
//
// Every value has a hazard, -ln(1 - p), by the class of its reference. The further a change is away in sums
// of hazards, the less likely: of each group of granules it is said whether there is one (more), with a
// probability of 1 - exp(-hazard), and where, in proportion to the hazards. So a change costs what the
// references let one expect, and nothing depends on how the classes are mixed. The steps follow, with
// probabilities that are learnt from those before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/delta/format.h"
#include "codec/delta/model.h"

namespace jaxccomp::delta {

// Hazards as whole numbers, the greatest of which is kGreatestWeight.
inline constexpr uint32_t kGreatestWeight = 4096;
struct Weights {
  explicit Weights(const Model& model);
  uint16_t of[kClasses] = {};
  uint64_t unit = 0;   // what a weight of 1 stands for, times 2^42
};

// How many granules make a group: that it seldom has more than one change.
inline constexpr int kMostGroupBits = 6;
int GroupBits(int64_t changes, int64_t granules);

// `classes`: of all values; `sums`: of the weights of each granule; of `count` changes the lengths, classes and
// directions. Returns the end; `at` has room for MostEventBytes.
int64_t MostEventBytes(int64_t changes, int64_t values);
std::byte* EncodeEvents(std::span<const uint64_t> map, std::span<const uint32_t> sums,
                        const uint8_t* classes, const Weights& weights, int group_bits,
                        const Changes& changes, int64_t count, std::byte* at);
// Sets the map and the changes. False where there are more or fewer than `count`, or bytes are left.
bool DecodeEvents(std::span<const std::byte> from, std::span<const uint32_t> sums,
                  const uint8_t* classes, const Weights& weights, int group_bits,
                  int64_t count, std::span<uint64_t> map, const Changes& changes);

}  // namespace jaxccomp::delta
