// The predicted cost of a collective on a described cluster, by simulating its schedules (simulation.h).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "collective/algorithm.h"
#include "planner/simulation.h"

namespace jaxccomp {

struct Price {
  const Algorithm* algorithm = nullptr;
  SimulatedRun run;
  bool reduced = false;      // only one host was simulated, for all hosts
};

enum class PriceBy : uint8_t {
  kEither,       // simulate one host for all if all hosts do the same
  kEveryRank,
};

// `problem` describes the collective, without ranks and hosts, which the cluster gives. `algorithm` is a name that
// callers use (algorithm_spec.h). If hosts differ and all ranks together have more than kMaxTasks tasks, the result
// is kInvalidArgument, which names the largest possible number of ranks.
inline constexpr int64_t kMaxTasks = 40'000'000;
Result<Price> PriceOf(Collective collective, const std::string& algorithm, Problem problem,
                      const Cluster& cluster, PriceBy by = PriceBy::kEither,
                      double limit_seconds = std::numeric_limits<double>::infinity());

}  // namespace jaxccomp
