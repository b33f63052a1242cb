// Reduce: the reduction of all ranks' blocks, at the root. Other ranks write no Output. At the root Output
// may be the operand's memory: only the task that writes a range reads it.

#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"
#include "collective/patterns/binomial.h"

namespace jaxccomp {

// Every rank sends its block to the root, which merges all blocks at once, in rank order, chunk by chunk.
// One step, one block sent per rank.
Schedule ReduceDirect(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  const std::vector<int> everybody = flow.Everybody();
  const std::vector<Slot> chunks = flow.Chunks(OutputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    if (flow.rank == problem.root) {
      flow.MergeFromAll(everybody, In(chunks[k]), chunks[k], Tag(0, k));
    } else {
      flow.Send(problem.root, Tag(0, k), flow.Pack(In(chunks[k])));
    }
  }
  return std::move(flow).Finish();
}

// Up a binomial tree, chunk by chunk: a rank merges its own and its children's values at once and sends
// the result to its parent. log2(ranks) steps, one block sent per rank. The merge order is root, root + 1,
// ...
Schedule ReduceBinomial(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(OfPartialSums(problem));
  const BinomialNode node(flow.rank, problem.root, flow.ranks);
  const std::vector<Slot> chunks = flow.Chunks(InputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    const Slot in = chunks[k];
    std::vector<Slot> sources = {in};
    std::vector<TaskId> deps;
    for (int distance = 1; distance < node.limit(); distance *= 2) {
      const int child = node.virtual_rank + distance;
      if (child >= flow.ranks) break;
      const Message theirs = flow.RecvTemp(node.RankOf(child), Tag(0, k), in);
      sources.push_back(theirs.slot);
      deps.push_back(theirs.ready);
    }
    if (node.is_root()) {
      flow.Merge(Out(in), std::move(sources), /*final=*/true, std::move(deps));
      continue;
    }
    Message result;
    if (deps.empty()) {
      result = flow.Pack(in);
    } else {
      const Slot merged = flow.Scratch(in);
      result = flow.Pack(merged, flow.Merge(merged, std::move(sources), false, std::move(deps)));
    }
    flow.Send(node.RankOf(node.parent()), Tag(0, k), result);
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
