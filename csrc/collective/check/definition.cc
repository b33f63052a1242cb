#include "collective/check/definition.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "collective/check/hazards.h"
#include "collective/patterns/split.h"

namespace jaxccomp {
namespace {

int64_t BytesBetween(const Problem& p, int source, int destination) {
  return p.counts.empty() ? p.block_bytes : p.counts[source * p.ranks + destination];
}

int64_t BytesOf(const Problem& p, int block) {
  return p.counts.empty() ? p.block_bytes : p.counts[block];
}

std::string Listed(const std::vector<int>& ranks) {
  constexpr size_t kMaxListed = 16;
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMaxListed); ++i) {
    text += (i > 0 ? " " : "") + std::to_string(ranks[i]);
  }
  return ranks.size() > kMaxListed ? text + " ..." : text;
}

bool SameLeaves(std::vector<int> leaves, std::vector<int> expected, MergeOrder order) {
  if (order == MergeOrder::kAny) {
    std::ranges::sort(leaves);
    std::ranges::sort(expected);
  } else if (order == MergeOrder::kRotated && leaves.size() == expected.size()) {
    std::rotate(leaves.begin(), std::find(leaves.begin(), leaves.end(), 0), leaves.end());
  }
  return leaves == expected;
}

// Result + all residuals = the reduction of the operands: each encoding on the way to a result must be in the
// residual of exactly one rank, once, in the block of this result.
bool LossesAddUp(const Outcome& outcome, const Expressions& expressions) {
  for (size_t block = 0; block < outcome.lost[0].size(); ++block) {
    // Block i is a result of rank i if each rank gets its own block; otherwise one block is the result of all.
    const Block& result = outcome.output[block][0];
    for (size_t i = 0; i < result.size(); ++i) {
      std::vector<int> lost;
      for (const auto& blocks : outcome.lost) {
        lost.insert(lost.end(), blocks[block][i].begin(), blocks[block][i].end());
      }
      std::vector<int> encoded = expressions.Encoded(result[i].value);
      std::ranges::sort(lost);
      std::ranges::sort(encoded);
      if (lost != encoded) return false;
    }
  }
  return true;
}

// The mistake in a cell of an Output block, or "".
std::string WrongCell(const Cell& cell, int32_t place, const Expected& expected, const Cell& of_first_rank,
                      bool must_be_final, bool encoded, const Expressions& expressions) {
  if (expected.leaves.empty()) return cell.value < 0 ? "" : "is written, and must not be";
  if (cell.value < 0) return "is never written";
  if (cell.block != expected.from_block) {
    return "has values of block " + std::to_string(cell.block) + " of its operand, not of block " +
           std::to_string(expected.from_block);
  }
  if (cell.place != place) return "has the values of another address";
  const std::vector<int>& leaves = expressions.Leaves(cell.value);
  if (!SameLeaves(leaves, expected.leaves, expected.order)) {
    return "is made of the operands of ranks " + Listed(leaves) + ", not of " + Listed(expected.leaves);
  }
  const bool operand = expressions.IsOperand(cell.value);
  if (expected.exact && !operand) return "is this rank's own operand, and has been coded or merged";
  if (expected.same && cell != of_first_rank) {
    return "has been encoded or merged otherwise than on rank 0, so that ranks get different values";
  }
  if (must_be_final && !expressions.IsFinal(cell.value)) return "is not what a final merge has given";
  if (!encoded && expected.leaves.size() == 1 && !operand) return "has been merged with nothing";
  return "";
}

}  // namespace

Expected Expect(Collective collective, const Problem& p, int rank, int block) {
  std::vector<int> all(static_cast<size_t>(p.ranks));
  std::iota(all.begin(), all.end(), 0);
  const bool from_all = !Info(collective).rooted || rank == p.root;
  switch (collective) {
    case Collective::kBcast: return {.leaves = {p.root}, .same = true};
    case Collective::kAllreduce: return {.leaves = all, .same = true};
    case Collective::kReduce: return {.leaves = from_all ? all : std::vector<int>()};
    case Collective::kAllgather:
    case Collective::kAllgatherv: return {.leaves = {block}, .same = true};
    case Collective::kGather:
    case Collective::kGatherv:
      if (!from_all) return {};
      return {.leaves = {block}, .exact = block == rank};
    case Collective::kScatter:
    case Collective::kScatterv: return {.leaves = {p.root}, .from_block = rank, .exact = rank == p.root};
    case Collective::kReduceScatter:
    case Collective::kReduceScatterv: return {.leaves = all, .from_block = rank};
    case Collective::kAlltoall:
    case Collective::kAlltoallv: return {.leaves = {block}, .from_block = rank, .exact = block == rank};
    case Collective::kScan:
    case Collective::kExscan: {
      const int place = p.reverse ? p.ranks - 1 - rank : rank;
      if (p.reverse) std::ranges::reverse(all);
      all.resize(static_cast<size_t>(place + (collective == Collective::kScan ? 1 : 0)));
      return {.leaves = all};
    }
    case Collective::kPermute:
      for (const auto& [source, destination] : p.pairs) {
        if (destination == rank) return {.leaves = {source}, .exact = source == rank};
      }
      return {};
    default: return {};
  }
}

std::vector<int64_t> BlockSizes(Collective collective, const Problem& p, int rank, bool output) {
  const Blocks blocks = output ? Info(collective).output : Info(collective).input;
  std::vector<int64_t> sizes;
  for (int i = 0; i < (blocks == Blocks::kOne ? 1 : p.ranks); ++i) {
    if (collective == Collective::kAlltoallv) {
      sizes.push_back(output ? BytesBetween(p, i, rank) : BytesBetween(p, rank, i));
    } else {
      sizes.push_back(BytesOf(p, blocks == Blocks::kOne ? rank : i));
    }
  }
  return sizes;
}

World WorldOf(Collective collective, const Problem& problem, std::vector<Schedule> schedules,
              bool shared_memory) {
  World world;
  world.shared_memory = shared_memory;
  world.exact = problem.exact;
  world.chunk_bytes = ChunkBytes(problem.block_bytes, problem.chunk_bytes);
  world.schedules = std::move(schedules);
  for (int rank = 0; rank < problem.ranks; ++rank) {
    world.input_bytes.push_back(BlockSizes(collective, problem, rank, false));
    world.output_bytes.push_back(BlockSizes(collective, problem, rank, true));
  }
  CutAtSlots(&world);
  return world;
}

bool MayShareMemory(Collective c) {
  return c == Collective::kBcast || c == Collective::kAllreduce || c == Collective::kReduce ||
         c == Collective::kScan || c == Collective::kExscan;
}

std::string FindMistake(Collective collective, const Problem& problem, const World& world,
                        const Definition& definition, Outcome* outcome_out) {
  for (int rank = 0; rank < problem.ranks; ++rank) {
    const std::string hazard = FindHazard(world.schedules[rank], world.shared_memory);
    if (!hazard.empty()) return "rank " + std::to_string(rank) + ", " + hazard;
  }
  Expressions expressions;
  const Outcome outcome = RunSymbols(world, expressions, /*seed=*/static_cast<uint32_t>(problem.ranks) + 7);
  if (!outcome.error.empty()) return outcome.error;
  const bool prefix = collective == Collective::kScan || collective == Collective::kExscan;
  const bool must_be_final = Info(collective).reduces && !prefix && problem.ranks > 1;
  for (int rank = 0; rank < problem.ranks; ++rank) {
    for (size_t b = 0; b < outcome.output[rank].size(); ++b) {
      const Expected expected = definition(rank, static_cast<int>(b));
      if (expected.leaves.empty() && world.shared_memory) continue;  // contains the operand
      const Block& cells = outcome.output[rank][b];
      for (size_t i = 0; i < cells.size(); ++i) {
        // Blocks that are not the same on all ranks may be longer than rank 0's.
        const Cell& of_first_rank = expected.same ? outcome.output[0][b][i] : cells[i];
        const std::string wrong =
            WrongCell(cells[i], static_cast<int32_t>(i), expected, of_first_rank, must_be_final,
                      problem.encoded && !problem.exact, expressions);
        if (wrong.empty()) continue;
        const int64_t address = world.cuts.empty() ? static_cast<int64_t>(i) * world.unit : world.cuts[i];
        return "rank " + std::to_string(rank) + ": output" + std::to_string(b) + " at byte " +
               std::to_string(address) + " " + wrong;
      }
    }
  }
  if (problem.feedback && !LossesAddUp(outcome, expressions)) {
    return "a residual is missing, or is there twice: what each encoding loses belongs to one rank, once";
  }
  if (outcome_out != nullptr) *outcome_out = outcome;
  return "";
}

std::string FindExcess(const Problem& problem, const Outcome& outcome) {
  constexpr int64_t kMinChunkBytes = 4096;
  const int64_t chunk_bytes = ChunkBytes(problem.block_bytes, problem.chunk_bytes);
  for (int rank = 0; rank < problem.ranks; ++rank) {
    const int64_t chunks = outcome.bound_bytes[rank] / chunk_bytes;
    const int64_t granted_bytes = chunks * std::max(chunk_bytes, kMinChunkBytes);
    if (outcome.peak_bytes[rank] <= granted_bytes) continue;
    return "rank " + std::to_string(rank) + ": holds " + std::to_string(outcome.peak_bytes[rank]) +
           " bytes of scratch and code at a time, " + std::to_string(granted_bytes) +
           " are granted: 4 chunks for each rank that it talks to. Cut values into chunks, one lane for each";
  }
  return "";
}

}  // namespace jaxccomp
