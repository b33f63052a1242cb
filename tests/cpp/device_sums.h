// Allreduces of whole numbers, whose sums are known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "device_team.h"

namespace jaxccomp::testing {

inline OpSpec Allreduce(int64_t count, const std::string& codec = "raw") {
  OpSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.codec = codec;
  spec.shapes = "int32[" + std::to_string(count) + "]";
  spec.where = "step.py:" + std::to_string(count);
  return spec;
}

inline RankArrays Numbers(int64_t count, int first) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<int32_t>(i % 1000);
  return {.inputs = {Int32s(values)},
          .outputs = {Int32s(std::vector<int32_t>(values.size(), -1))},
          .refs = {}};
}

// Checks for the sum of Numbers(count, first), Numbers(count, first + 1) and so on.
inline bool IsSum(const RankArrays& arrays, int64_t count, int ranks, int first) {
  const std::vector<int32_t> values = ValuesOf<int32_t>(arrays.outputs[0]);
  if (!CHECK_EQ(std::ssize(values), count)) return false;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t sum = (first + i % 1000) * ranks + ranks * (ranks - 1) / 2;
    if (!CHECK_EQ(values[i], sum)) return false;
  }
  return true;
}

}  // namespace jaxccomp::testing
