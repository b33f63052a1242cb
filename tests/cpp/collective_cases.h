// One algorithm on one shape of world, against the definition of its collective.
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
#include "collective/carry.h"
#include "collective/patterns/split.h"
#include "collective/schedule.h"
#include "oracle.h"

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
         Listed(" hosts", p.hosts) + Listed(" gpus", p.gpus) +
         (p.level == Level::kGpu ? " level gpu" : "") +
         (p.coded ? " coded" : "") + (p.exact ? " exact" : "") + (p.feedback ? " feedback" : "") +
         (p.reverse ? " reverse" : "") +
         (p.multi_slot ? " multi_slot" : "") + (shared_memory ? " shared memory" : "");
}

inline int64_t BytesBetween(const Problem& p, int source, int destination) {
  return p.counts.empty() ? p.block_bytes : p.counts[source * p.ranks + destination];
}

inline int64_t BytesOf(const Problem& p, int block) {
  return p.counts.empty() ? p.block_bytes : p.counts[block];
}

inline std::vector<int64_t> BlockSizes(Collective c, const Problem& p, int rank, bool output) {
  const Blocks blocks = output ? Info(c).output : Info(c).input;
  std::vector<int64_t> sizes;
  for (int i = 0; i < (blocks == Blocks::kOne ? 1 : p.ranks); ++i) {
    if (c == Collective::kAlltoallv) {
      sizes.push_back(output ? BytesBetween(p, i, rank) : BytesBetween(p, rank, i));
    } else {
      sizes.push_back(BytesOf(p, blocks == Blocks::kOne ? rank : i));
    }
  }
  return sizes;
}

// What the Output block `block` of `rank` must hold: whose operands in which order (any
// rotation of it, where `rotated`), and which of their blocks. Empty: nothing is written.
struct Expected {
  std::vector<int> leaves;
  int from_block = 0;
  bool rotated = false;
  bool exact = false;      // the operand itself, never through a codec
  bool same = false;       // identical on all ranks
};

// By host, and by GPU on each: groups follow each other as their lowest ranks do.
inline std::vector<int> InOrderOfGroups(const Problem& p) {
  const auto first_of = [&](const std::vector<int>& groups, int rank) {
    const auto lowest = groups.empty() ? groups.end()
                                       : std::find(groups.begin(), groups.end(), groups[rank]);
    return groups.empty() ? rank : static_cast<int>(lowest - groups.begin());
  };
  std::vector<std::tuple<int, int, int>> places;
  for (int rank = 0; rank < p.ranks; ++rank) {
    const int host = p.level == Level::kGpu ? 0 : first_of(p.hosts, rank);
    places.emplace_back(host, first_of(p.gpus, rank), rank);
  }
  std::sort(places.begin(), places.end());
  std::vector<int> order;
  for (const auto& place : places) order.push_back(std::get<2>(place));
  return order;
}

inline Expected Expect(const Algorithm& algorithm, const Problem& p, int rank, int block) {
  std::vector<int> all(p.ranks);
  std::iota(all.begin(), all.end(), 0);
  const bool ring = algorithm.name == "ring";
  const bool by_group = algorithm.name == "hierarchical";
  const bool from_all = !Info(algorithm.collective).rooted || rank == p.root;
  switch (algorithm.collective) {
    case Collective::kBcast:
      return {.leaves = {p.root}, .same = algorithm.name != "chain_recoded" || !p.coded};
    case Collective::kAllreduce:
      if (by_group) all = InOrderOfGroups(p);
      return {.leaves = all, .rotated = ring, .same = true};
    case Collective::kReduce:
      if (algorithm.name == "binomial") std::rotate(all.begin(), all.begin() + p.root, all.end());
      return {.leaves = from_all ? all : std::vector<int>()};
    case Collective::kAllgather:
    case Collective::kAllgatherv:
    case Collective::kMeet:
      return {.leaves = {block}, .same = true};
    case Collective::kGather:
    case Collective::kGatherv:
      if (!from_all) return {};
      return {.leaves = {block}, .exact = block == rank};
    case Collective::kScatter:
    case Collective::kScatterv:
      return {.leaves = {p.root}, .from_block = rank, .exact = rank == p.root};
    case Collective::kReduceScatter:
    case Collective::kReduceScatterv:
      return {.leaves = all, .from_block = rank, .rotated = ring};
    case Collective::kAlltoall:
    case Collective::kAlltoallv:
      return {.leaves = {block}, .from_block = rank, .exact = block == rank};
    case Collective::kScan:
    case Collective::kExscan: {
      const int place = p.reverse ? p.ranks - 1 - rank : rank;
      if (p.reverse) std::reverse(all.begin(), all.end());
      all.resize(place + (algorithm.collective == Collective::kScan ? 1 : 0));
      return {.leaves = all};
    }
    case Collective::kPermute:
      for (const auto& [source, destination] : p.pairs) {
        if (destination == rank) return {.leaves = {source}, .exact = source == rank};
      }
      return {};
    default:
      return {};
  }
}

inline World Build(const Algorithm& algorithm, const Problem& problem, bool shared_memory) {
  World world;
  world.shared_memory = shared_memory;
  world.exact = problem.exact;
  world.chunk_bytes = ChunkBytes(problem.block_bytes, problem.chunk_bytes);
  for (int rank = 0; rank < problem.ranks; ++rank) {
    Problem p = problem;
    p.rank = rank;
    world.schedules.push_back(algorithm.build(p));
    world.input_bytes.push_back(BlockSizes(algorithm.collective, p, rank, false));
    world.output_bytes.push_back(BlockSizes(algorithm.collective, p, rank, true));
  }
  return world;
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

inline bool SameOrder(std::vector<int> leaves, const Expected& expected) {
  if (expected.rotated && leaves.size() == expected.leaves.size()) {
    std::rotate(leaves.begin(), std::find(leaves.begin(), leaves.end(), 0), leaves.end());
  }
  return leaves == expected.leaves;
}

// Results are the reduction of the operands less all losses: whatever was encoded on the way to a
// result was lost on one rank, once, in the block that the result is a reduction of.
inline bool LossesAddUp(const Outcome& outcome, const Expressions& expressions) {
  for (size_t block = 0; block < outcome.lost[0].size(); ++block) {
    // Where each rank gets its own block, block i at rank i; else there is one, which all get.
    const Block& result = outcome.output[block][0];
    for (size_t i = 0; i < result.size(); ++i) {
      std::vector<int> lost;
      for (const auto& blocks : outcome.lost) {
        lost.insert(lost.end(), blocks[block][i].begin(), blocks[block][i].end());
      }
      std::vector<int> encoded = expressions.Encoded(result[i].value);
      std::sort(lost.begin(), lost.end());
      std::sort(encoded.begin(), encoded.end());
      if (lost != encoded) return false;
    }
  }
  return true;
}

// Checks for hazards, runs and compares one problem; false after a failure.
inline bool VerifyWorld(const Algorithm& algorithm, const Problem& problem, const World& world,
                        Outcome* outcome_out) {
  const bool shared_memory = world.shared_memory;
  const std::string what =
      Describe(algorithm, problem, shared_memory) + (world.carries ? " carried" : "");
  if (!CheckNoHazard(world, what)) return false;
  Expressions expressions;
  const Outcome outcome = Oracle(world, expressions, /*seed=*/problem.ranks + 7).Run();
  if (!outcome.error.empty()) return CHECK_EQ(what + ": " + outcome.error, "");
  for (int rank = 0; rank < problem.ranks; ++rank) {
    for (size_t b = 0; b < outcome.output[rank].size(); ++b) {
      const Expected expected = Expect(algorithm, problem, rank, b);
      if (expected.leaves.empty() && shared_memory) continue;  // what the operand left there
      const Block& cells = outcome.output[rank][b];
      for (size_t i = 0; i < cells.size(); ++i) {
        const Cell& cell = cells[i];
        bool ok = true;
        if (expected.leaves.empty()) {
          ok = cell.value < 0;
        } else if (cell.value < 0) {
          ok = false;
        } else {
          ok = cell.block == expected.from_block && cell.place == static_cast<int>(i) &&
               SameOrder(expressions.Leaves(cell.value), expected);
          if (expected.exact) ok = ok && expressions.IsOperand(cell.value);
          if (expected.same) ok = ok && cell == outcome.output[0][b][i];
          const Collective c = algorithm.collective;
          if (Info(c).reduces && c != Collective::kScan && c != Collective::kExscan &&
              problem.ranks > 1) {
            ok = ok && expressions.IsFinal(cell.value);
          }
          if ((!problem.coded || problem.exact) && expected.leaves.size() == 1) {
            ok = ok && expressions.IsOperand(cell.value);
          }
        }
        if (ok) continue;
        return CHECK_EQ(what + ": rank " + std::to_string(rank) + " block " + std::to_string(b) +
                            " is wrong at " + std::to_string(i * kBlockAlign) + "\n" +
                            world.schedules[rank].ToString(),
                        "");
      }
    }
  }
  if (problem.feedback && !LossesAddUp(outcome, expressions)) {
    return CHECK_EQ(what + ": losses are not counted once each", "");
  }
  if (outcome_out != nullptr) *outcome_out = outcome;
  return true;
}

// The same of the schedules that an algorithm builds; with feedback also of those that carry residuals.
inline bool Verify(const Algorithm& algorithm, const Problem& problem, bool shared_memory,
                   Outcome* outcome_out = nullptr) {
  World world = Build(algorithm, problem, shared_memory);
  if (!VerifyWorld(algorithm, problem, world, outcome_out)) return false;
  if (!problem.feedback) return true;
  world.carries = true;
  for (Schedule& schedule : world.schedules) schedule = CarryResiduals(schedule);
  return VerifyWorld(algorithm, problem, world, outcome_out);
}

// Team sizes: all up to 17 in `make test-slow`; else those that stand for them, odd and even, powers of
// two and primes.
inline std::span<const int> Ranks() {
  static constexpr int kAll[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
  static constexpr int kSome[] = {1, 2, 3, 5, 8, 11, 16};
  static const char* const slow = std::getenv("JAXCCOMP_TEST_SLOW");
  if (slow == nullptr || *slow == '\0') return kSome;
  return kAll;
}


struct Size {
  int64_t block_bytes, chunk_bytes;
  bool many_ranks;  // also tried with more than 8 ranks
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

// At most 4 chunks per rank that one talks to, whatever the size of the values.
// Where chunks can be cut into as many pieces as the algorithms want.
inline void CheckMemory(const Algorithm& algorithm, const Problem& p, const Outcome& outcome) {
  if (p.chunk_bytes < 4096) return;
  for (int rank = 0; rank < p.ranks; ++rank) {
    if (outcome.peak_bytes[rank] <= outcome.bound_bytes[rank]) continue;
    CHECK_EQ(Describe(algorithm, p, false) + " rank " + std::to_string(rank) + " holds " +
                 std::to_string(outcome.peak_bytes[rank]) + " of " +
                 std::to_string(outcome.bound_bytes[rank]),
             "");
    return;
  }
}

// One allreduce on every size, raw, coded and with feedback, and in place or not; false after a
// failure.
inline bool VerifyAllreduce(const Algorithm& algorithm, Problem p) {
  for (const Size& size : kSizes) {
    p.block_bytes = size.block_bytes;
    p.chunk_bytes = size.chunk_bytes;
    for (int variant = 0; variant < 6; ++variant) {
      p.coded = variant % 3 != 0;
      p.feedback = variant % 3 == 2;
      Outcome outcome;
      if (!Verify(algorithm, p, /*shared_memory=*/variant >= 3, &outcome)) return false;
      CheckMemory(algorithm, p, outcome);
    }
  }
  return true;
}

}  // namespace jaxccomp::testing
