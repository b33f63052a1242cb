#include "planner/price.h"

#include <algorithm>
#include <utility>

#include "collective/algorithm_spec.h"

namespace jaxccomp {
namespace {

// Estimates the number of tasks of all ranks from the first, the last and a few ranks between.
int64_t EstimatedTasks(const Algorithm& algorithm, Problem problem, int ranks) {
  problem.ranks = ranks;
  if (!problem.hosts.empty()) problem.hosts.resize(static_cast<size_t>(ranks));
  int64_t sum = 0, count = 0;
  for (int rank : {0, 1, ranks / 3, ranks / 2, ranks - 1}) {
    if (rank >= ranks) continue;
    problem.rank = rank;
    const auto tasks = static_cast<int64_t>(algorithm.build(problem).tasks.size());
    // The root's count is not typical of other ranks.
    if (rank == problem.root && ranks > 8) continue;
    sum += tasks;
    ++count;
  }
  return count == 0 ? 0 : sum / count * ranks;
}

Status TooLarge(const Algorithm& algorithm, const Problem& problem) {
  int ranks = problem.ranks;
  while (ranks > 2 && EstimatedTasks(algorithm, problem, ranks) > kMaxTasks) ranks = ranks * 3 / 4;
  std::string text = std::string(Info(algorithm.collective).name) + " " +
                     std::string(algorithm.name) + " of " + std::to_string(problem.block_bytes) +
                     " bytes on " + std::to_string(problem.ranks) +
                     " ranks has too many tasks to be simulated rank by rank, which it takes as its "
                     "ranks do different things here: up to " +
                     std::to_string(ranks) + " ranks can be";
  if (problem.block_bytes % (kBlockAlign * problem.ranks) != 0) {
    text += "; all ranks may do the same with a size that is a multiple of " +
            std::to_string(kBlockAlign * problem.ranks) + " bytes";
  }
  return {Code::kInvalidArgument, text};
}

}  // namespace

Result<Price> PriceOf(Collective collective, const std::string& algorithm, Problem problem,
                      const Cluster& cluster, PriceBy by, double limit_seconds) {
  Status status = cluster.Check(problem.encoded);
  if (!status.ok()) return status;
  problem.ranks = cluster.Ranks();
  problem.hosts = cluster.HostOfRanks();
  problem.multi_slot = true;
  Result<AlgorithmSpec> spec = ParseAlgorithm(collective, algorithm);
  if (!spec.ok()) return spec.status();
  spec->ApplyTo(&problem);
  Result<const Algorithm*> found = SelectAlgorithm(collective, *spec, problem);
  if (!found.ok()) return found.status();

  Price price;
  price.algorithm = *found;
  const Symmetry symmetry = SymmetryOf(**found, problem, cluster);
  price.reduced = by == PriceBy::kEither && symmetry != Symmetry::kNone;
  if (!price.reduced && EstimatedTasks(**found, problem, problem.ranks) > kMaxTasks) {
    return TooLarge(**found, problem);
  }
  std::vector<RankTasks> ranks;
  for (int rank = 0; rank < (price.reduced ? cluster.hosts[0].ranks : problem.ranks); ++rank) {
    problem.rank = rank;
    ranks.push_back(PriceTasks((*found)->build(problem), cluster, problem.chunk_bytes));
  }
  Result<SimulatedRun> run =
      Simulate(std::move(ranks), cluster, symmetry, price.reduced, limit_seconds);
  if (!run.ok()) return run.status();
  price.run = std::move(*run);
  return price;
}

}  // namespace jaxccomp
