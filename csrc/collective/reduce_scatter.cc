// Reduce-scatter: block i of all ranks, reduced, at rank i.

#include <algorithm>
#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"

namespace jaxccomp {

// Block i goes straight to rank i, which merges all at once, in rank order, chunk by chunk. One
// step, ranks - 1 blocks sent per rank.
Schedule ReduceScatterDirect(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  ChunkSlots blocks(flow.ranks);
  size_t chunk_count = 0;
  for (int i = 0; i < flow.ranks; ++i) {
    blocks[i] = flow.Chunks(InputSlot(i, 0, BlockBytes(problem, i)));
    chunk_count = std::max(chunk_count, blocks[i].size());
  }
  std::vector<TaskId> merges;
  for (size_t k = 0; k < chunk_count; ++k) {
    for (int step = 1; step < flow.ranks; ++step) {
      const int owner = flow.Peer(step);
      if (k >= blocks[owner].size()) continue;
      flow.Send(owner, Tag(0, k), flow.Pack(blocks[owner][k]));
    }
    if (k >= blocks[flow.rank].size()) continue;
    const Slot own = blocks[flow.rank][k];
    merges.push_back(flow.MergeFromAll(own, Out(own), Tag(0, k),
                                       k >= kWindow ? merges[k - kWindow] : kNoTask));
  }
  return std::move(flow).Finish();
}

// Around a ring, chunk by chunk: ranks - 1 steps, ranks - 1 blocks sent per rank, to the
// successor only. Block i is merged in the order of ranks i + 1, ..., i.
Schedule ReduceScatterRing(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  ChunkSlots blocks(flow.ranks);
  for (int i = 0; i < flow.ranks; ++i) {
    blocks[i] = flow.Chunks(InputSlot(i, 0, problem.block_bytes));
  }
  RingReduceScatter(flow, blocks, flow.Chunks(OutputSlot(0, 0, problem.block_bytes)),
                    /*first_phase=*/0);
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
