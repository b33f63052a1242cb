// Checks one algorithm for one set of ranks against the definition of its collective.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "check.h"
#include "collective/algorithm.h"
#include "collective/residual_in.h"
#include "collective/check/definition.h"
#include "collective/check/hazards.h"
#include "collective/schedule.h"

namespace jaxccomp::testing {

inline const Algorithm& Find(Collective c, std::string_view name) {
  return **SelectAlgorithm(c, name, Problem());
}

inline std::string Listed(const std::string& what, const std::vector<int>& numbers) {
  std::string text = numbers.empty() ? "" : what;
  for (int number : numbers) text += " " + std::to_string(number);
  return text;
}

inline std::string Describe(const Algorithm& algorithm, const Problem& p, bool shared_memory) {
  return std::string(Info(algorithm.collective).name) + " " + std::string(algorithm.name) +
         " ranks " + std::to_string(p.ranks) + " root " + std::to_string(p.root) + " bytes " +
         std::to_string(p.block_bytes) + " chunk " + std::to_string(p.chunk_bytes) +
         Listed(" hosts", p.hosts) +
         (p.encoded ? " coded" : "") + (p.bounded ? " bounded" : "") + (p.exact ? " exact" : "") + (p.feedback ? " feedback" : "") +
         (p.reverse ? " reverse" : "") +
         (p.multi_slot ? " multi_slot" : "") + (shared_memory ? " shared memory" : "");
}

// Ranks by host. Hosts are in the order of their lowest ranks.
inline std::vector<int> InOrderOfGroups(const Problem& p) {
  std::vector<std::pair<int, int>> places;
  for (int rank = 0; rank < p.ranks; ++rank) {
    const auto lowest = p.hosts.empty() ? p.hosts.end()
                                        : std::find(p.hosts.begin(), p.hosts.end(), p.hosts[rank]);
    places.emplace_back(p.hosts.empty() ? rank : static_cast<int>(lowest - p.hosts.begin()), rank);
  }
  std::sort(places.begin(), places.end());
  std::vector<int> order;
  for (const auto& [host, rank] : places) order.push_back(rank);
  return order;
}

// The expected result, with the merge order of the algorithm: the collective's definition does not fix it.
inline Expected ExpectOf(const Algorithm& algorithm, const Problem& p, int rank, int block) {
  Expected expected = Expect(algorithm.collective, p, rank, block);
  expected.order = algorithm.name == "ring" ? MergeOrder::kRotated : MergeOrder::kAsListed;
  if (algorithm.name == "hierarchical") expected.leaves = InOrderOfGroups(p);
  if (algorithm.name == "chain_recoded" && p.encoded) expected.same = false;
  if (algorithm.collective == Collective::kReduce && algorithm.name == "binomial" && rank == p.root) {
    std::rotate(expected.leaves.begin(), expected.leaves.begin() + p.root, expected.leaves.end());
  }
  return expected;
}

inline World Build(const Algorithm& algorithm, const Problem& problem, bool shared_memory) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < problem.ranks; ++rank) {
    Problem p = problem;
    p.rank = rank;
    schedules.push_back(algorithm.build(p));
  }
  return WorldOf(algorithm.collective, problem, std::move(schedules), shared_memory);
}

inline bool CheckNoHazard(const World& world, const std::string& what) {
  bool ok = true;
  for (const Schedule& schedule : world.schedules) {
    const std::string hazard = FindHazard(schedule, world.shared_memory);
    if (hazard.empty()) continue;
    ok = CHECK_EQ(what + ": " + hazard, "");
    break;
  }
  return ok;
}

// Checks one problem. Returns false after a failure.
inline bool VerifyWorld(const Algorithm& algorithm, const Problem& problem, const World& world,
                        Outcome* outcome) {
  const std::string mistake = FindMistake(
      algorithm.collective, problem, world,
      [&](int rank, int block) { return ExpectOf(algorithm, problem, rank, block); }, outcome);
  if (mistake.empty()) return true;
  const std::string what =
      Describe(algorithm, problem, world.shared_memory) + (world.adds_residual ? " carried" : "");
  return CHECK_EQ(what + ": " + mistake, "");
}

// Checks the schedules that an algorithm builds; with feedback also their variants that add incoming residuals.
inline bool Verify(const Algorithm& algorithm, const Problem& problem, bool shared_memory,
                   Outcome* outcome_out = nullptr) {
  World world = Build(algorithm, problem, shared_memory);
  if (!VerifyWorld(algorithm, problem, world, outcome_out)) return false;
  if (!problem.feedback) return true;
  world.adds_residual = true;
  for (Schedule& schedule : world.schedules) schedule = AddResidualsIn(schedule);
  return VerifyWorld(algorithm, problem, world, outcome_out);
}

// Team sizes: all up to 17 in `make test-slow`, otherwise some odd and even numbers, powers of two and primes.
inline std::span<const int> Ranks() {
  static constexpr int kAll[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
  static constexpr int kSome[] = {1, 2, 3, 5, 8, 11};
  static const char* const slow = std::getenv("JAXCCOMP_TEST_SLOW");
  if (slow == nullptr || *slow == '\0') return kSome;
  return kAll;
}


struct Size {
  int64_t block_bytes, chunk_bytes;
  bool many_ranks;  // also tested with more than 8 ranks
};
inline constexpr Size kSizes[] = {
    {0, 64, true},     {64, 64, false},      {100, 64, true},          {4096, 256, true},
    {4096, 64, false}, {100000, 4096, true}, {100000, 1 << 20, false}, {2000, 0, false}};

inline std::vector<int> Roots(const Algorithm& algorithm, int ranks) {
  std::vector<int> roots = {0};
  if (!Info(algorithm.collective).rooted || ranks == 1) return roots;
  if (ranks > 5) return {0, ranks / 2, ranks - 1};
  roots.resize(ranks);
  std::iota(roots.begin(), roots.end(), 0);
  return roots;
}

inline void CheckMemory(const Algorithm& algorithm, const Problem& p, const Outcome& outcome) {
  const std::string excess = FindExcess(p, outcome);
  if (!excess.empty()) CHECK_EQ(Describe(algorithm, p, false) + " " + excess, "");
}

// Checks one allreduce at every size: raw, encoded, with feedback, with a codec of a small range; each also in place.
// Returns false after a failure.
inline bool VerifyAllreduce(const Algorithm& algorithm, Problem p) {
  for (const Size& size : kSizes) {
    p.block_bytes = size.block_bytes;
    p.chunk_bytes = size.chunk_bytes;
    for (int variant = 0; variant < 8; ++variant) {
      p.encoded = variant % 4 != 0;
      p.feedback = variant % 4 >= 2;
      p.bounded = variant % 4 == 3;
      Outcome outcome;
      if (!Verify(algorithm, p, /*shared_memory=*/variant >= 4, &outcome)) return false;
      CheckMemory(algorithm, p, outcome);
    }
  }
  return true;
}

}  // namespace jaxccomp::testing
