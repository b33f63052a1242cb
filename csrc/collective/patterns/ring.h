// Ranks on a ring.
#pragma once

namespace jaxccomp {

// `rank` + `distance` on a ring of `ranks`; distance may be negative, down to -ranks.
inline constexpr int Shifted(int rank, int distance, int ranks) {
  return static_cast<int>((static_cast<long long>(rank) + distance + ranks) % ranks);
}

// Ring reduce-scatter, ranks - 1 steps: the part that `rank` sends to its successor at `step`. Part i
// starts at rank i + 1 and is complete at rank i.
inline constexpr int ReduceScatterPart(int rank, int step, int ranks) {
  return Shifted(rank, -step - 1, ranks);
}

// Ring all-gather, ranks - 1 steps: the part that `rank` sends to its successor at `step`.
inline constexpr int AllgatherPart(int rank, int step, int ranks) {
  return Shifted(rank, -step, ranks);
}

}  // namespace jaxccomp
