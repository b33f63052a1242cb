// Rounds sizes and addresses up.
#pragma once

#include <cstdint>

namespace jaxccomp {

// The smallest multiple of `multiple` that is at least `bytes`, which is not negative.
constexpr int64_t RoundUp(int64_t bytes, int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace jaxccomp
