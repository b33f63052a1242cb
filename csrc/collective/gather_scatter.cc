// Gather: every rank's block at the root; the others write no Output. Scatter: block i of the
// root at rank i. The root's own block is copied, not coded.

#include <algorithm>
#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"
#include "collective/patterns/binomial.h"

namespace jaxccomp {
namespace {

// The blocks of virtual ranks [first, last) of a tree: Input, Output or (to be made) Scratch.
std::vector<Slot> BlocksOf(const BinomialNode& node, Space space, int first, int last,
                           int64_t block_bytes) {
  std::vector<Slot> blocks;
  for (int v = first; v < last; ++v) blocks.push_back({space, node.RankOf(v), 0, block_bytes});
  return blocks;
}

}  // namespace

// Everyone sends its block to the root. One step, one block sent per rank.
Schedule GatherDirect(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  if (flow.rank != problem.root) {
    const std::vector<Slot> own = flow.Chunks(InputSlot(0, 0, BlockBytes(problem, flow.rank)));
    for (size_t k = 0; k < own.size(); ++k) {
      flow.Send(problem.root, Tag(0, k), flow.Pack(own[k]));
    }
    return std::move(flow).Finish();
  }
  for (const Slot& chunk :
       flow.Chunks(OutputSlot(flow.rank, 0, BlockBytes(problem, flow.rank)))) {
    flow.Copy(chunk, In(chunk));
  }
  ChunkSlots places(flow.ranks);
  size_t chunk_count = 0;
  for (int i = 0; i < flow.ranks; ++i) {
    places[i] = flow.Chunks(OutputSlot(i, 0, BlockBytes(problem, i)));
    chunk_count = std::max(chunk_count, places[i].size());
  }
  for (size_t k = 0; k < chunk_count; ++k) {
    for (int step = 1; step < flow.ranks; ++step) {
      const int peer = flow.Peer(-step);
      if (k >= places[peer].size()) continue;
      flow.Place(places[peer][k], flow.Land(peer, Tag(0, k), places[peer][k]));
    }
  }
  return std::move(flow).Finish();
}

// Up a binomial tree: a rank passes its subtree's blocks to its parent at once. log2(ranks)
// steps and messages at the root; (ranks / 2) log2(ranks) blocks sent in all.
Schedule GatherBinomial(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  if (problem.block_bytes == 0) return std::move(flow).Finish();
  const BinomialNode node(flow.rank, problem.root, flow.ranks);
  const Slot in = InputSlot(0, 0, problem.block_bytes);
  std::vector<Parcel> held;  // blocks of the subtree, in order
  if (node.is_root()) {
    flow.Copy(Out(in, flow.rank), in);
  } else {
    held.push_back(flow.Pack(in));
  }
  for (int distance = 1; distance < node.limit(); distance *= 2) {
    const int child = node.virtual_rank + distance;
    if (child >= flow.ranks) break;
    const std::vector<Slot> dsts =
        BlocksOf(node, node.is_root() ? Space::kOutput : Space::kScratch, child,
                 node.ChildEnd(distance), problem.block_bytes);
    const std::vector<Parcel> landed = flow.LandAll(node.RankOf(child), 0, dsts);
    if (node.is_root()) {
      for (size_t i = 0; i < dsts.size(); ++i) flow.Place(dsts[i], landed[i]);
    } else {
      held.insert(held.end(), landed.begin(), landed.end());
    }
  }
  if (!node.is_root()) flow.SendAll(node.RankOf(node.parent()), 0, held);
  return std::move(flow).Finish();
}

// The root sends every rank its block. One step, ranks - 1 blocks sent by the root.
Schedule ScatterDirect(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  const std::vector<Slot> own = flow.Chunks(OutputSlot(0, 0, BlockBytes(problem, flow.rank)));
  if (flow.rank != problem.root) {
    for (size_t k = 0; k < own.size(); ++k) {
      flow.Place(own[k], flow.Land(problem.root, Tag(0, k), own[k]));
    }
    return std::move(flow).Finish();
  }
  ChunkSlots blocks(flow.ranks);
  size_t chunk_count = 0;
  for (int i = 0; i < flow.ranks; ++i) {
    blocks[i] = flow.Chunks(InputSlot(i, 0, BlockBytes(problem, i)));
    chunk_count = std::max(chunk_count, blocks[i].size());
  }
  for (size_t k = 0; k < chunk_count; ++k) {
    for (int step = 1; step < flow.ranks; ++step) {
      const int peer = flow.Peer(step);
      if (k < blocks[peer].size()) flow.Send(peer, Tag(0, k), flow.Pack(blocks[peer][k]));
    }
  }
  for (const Slot& chunk : own) flow.Copy(chunk, In(chunk, flow.rank));
  return std::move(flow).Finish();
}

// Down a binomial tree, largest subtree first: a rank gets its subtree's blocks at once and
// passes each child its share. log2(ranks) steps and messages at the root.
Schedule ScatterBinomial(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  if (problem.block_bytes == 0) return std::move(flow).Finish();
  const BinomialNode node(flow.rank, problem.root, flow.ranks);
  const Slot out = OutputSlot(0, 0, problem.block_bytes);
  std::vector<Parcel> held;  // blocks of the subtree, in order; the root's own is not among them
  if (node.is_root()) {
    for (const Slot& block : BlocksOf(node, Space::kInput, 1, flow.ranks, problem.block_bytes)) {
      held.push_back(flow.Pack(block));
    }
  } else {
    std::vector<Slot> dsts = BlocksOf(node, Space::kScratch, node.virtual_rank,
                                      node.SubtreeEnd(), problem.block_bytes);
    dsts[0] = out;
    held = flow.LandAll(node.RankOf(node.parent()), 0, dsts);
  }
  const int first = node.is_root() ? 1 : node.virtual_rank;  // virtual rank of held[0]
  for (int distance = node.limit() / 2; distance >= 1; distance /= 2) {
    const int child = node.virtual_rank + distance;
    if (child >= flow.ranks) continue;
    flow.SendAll(node.RankOf(child), 0,
                 std::span(held).subspan(child - first, node.ChildEnd(distance) - child));
  }
  if (node.is_root()) {
    flow.Copy(out, In(out, flow.rank));
  } else {
    flow.Place(out, held[0]);
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
