// Reduce-scatter: block i of all ranks, reduced, at rank i.

#include <algorithm>
#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"

namespace jaxccomp {

// Block i goes directly to rank i, which merges all blocks at once, in rank order, chunk by chunk. One
// step, ranks - 1 blocks sent per rank.
Schedule ReduceScatterDirect(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  ChunkSlots blocks(flow.ranks);
  for (int i = 0; i < flow.ranks; ++i) {
    blocks[i] = flow.Chunks(InputSlot(i, 0, BlockBytes(problem, i)));
  }
  const std::vector<int> everybody = flow.Everybody();
  for (size_t k = 0; k < LanesOf(blocks); ++k) {
    flow.Lane(k);
    const std::vector<Slot> slots = LaneOf(blocks, k);
    for (int step = 1; step < flow.ranks; ++step) {
      const int owner = flow.Peer(step);
      if (slots[owner].bytes() > 0) flow.Send(owner, Tag(0, k), flow.Pack(slots[owner]));
    }
    const Slot own = slots[flow.rank];
    if (own.bytes() > 0) flow.MergeFromAll(everybody, own, Out(own), Tag(0, k));
  }
  return std::move(flow).Finish();
}

// Around a ring, chunk by chunk: ranks - 1 steps, ranks - 1 blocks sent per rank, to the
// successor only. Block i is merged in the order of ranks i + 1, ..., i.
Schedule ReduceScatterRing(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem, /*pieces=*/problem.encoded && !problem.bounded ? 3 : 4);
  flow.SlimLanes();
  ChunkSlots blocks(flow.ranks);
  for (int i = 0; i < flow.ranks; ++i) {
    blocks[i] = flow.Chunks(InputSlot(i, 0, problem.block_bytes));
  }
  for (size_t k = 0; k < LanesOf(blocks); ++k) {
    flow.Lane(k);
    const std::vector<Slot> slots = LaneOf(blocks, k);
    RingReduceScatter(flow, slots, Out(slots[flow.rank]), Tag(0, k));
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
