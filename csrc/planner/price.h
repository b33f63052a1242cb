// What a collective costs on a described cluster: the simulation of its schedules (simulation.h).
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
  bool reduced = false;      // one host was simulated for all
};

enum class PriceBy : uint8_t {
  kEither,       // one host for all, where hosts do the same
  kEveryRank,
};

// `problem` says what is done; ranks and hosts are the cluster's. `algorithm` as callers name one
// (algorithm_spec.h). An algorithm whose hosts differ, and of which all ranks together have more than
// kMostTasks tasks, is kInvalidArgument that names the largest number of ranks that can be priced.
inline constexpr int64_t kMostTasks = 40'000'000;
Result<Price> PriceOf(Collective collective, const std::string& algorithm, Problem problem,
                      const Cluster& cluster, PriceBy by = PriceBy::kEither,
                      double limit_seconds = std::numeric_limits<double>::infinity());

}  // namespace jaxccomp
