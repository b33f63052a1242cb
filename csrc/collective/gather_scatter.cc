// Gather: every rank's block at the root; other ranks write no Output. Scatter: block i of the root at
// rank i. The root's own block is copied, not encoded.

#include <algorithm>
#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"
#include "collective/patterns/binomial.h"

namespace jaxccomp {
namespace {

// `range` of the blocks of virtual ranks [first, last) of a tree, in `space`: Input, Output or Scratch (not
// allocated yet).
std::vector<Slot> BlocksOf(const BinomialNode& node, Space space, int first, int last,
                           Slot range) {
  std::vector<Slot> blocks;
  for (int v = first; v < last; ++v) {
    blocks.push_back({space, node.RankOf(v), range.begin, range.end});
  }
  return blocks;
}

}  // namespace

// Every rank sends its block to the root. One step, one block sent per rank.
Schedule GatherDirect(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  ChunkSlots blocks(flow.ranks);
  for (int i = 0; i < flow.ranks; ++i) {
    if (i != flow.rank && flow.rank != problem.root) continue;
    blocks[i] = flow.Chunks(OutputSlot(i, 0, BlockBytes(problem, i)));
  }
  for (size_t k = 0; k < LanesOf(blocks); ++k) {
    flow.Lane(k);
    const std::vector<Slot> places = LaneOf(blocks, k);
    const Slot own = places[flow.rank];
    if (flow.rank != problem.root) {
      flow.Send(problem.root, Tag(0, k), flow.Pack(In(own)));
      continue;
    }
    if (own.bytes() > 0) flow.Copy(own, In(own));
    for (int step = 1; step < flow.ranks; ++step) {
      const int peer = flow.Peer(-step);
      if (places[peer].bytes() == 0) continue;
      flow.Unpack(places[peer], flow.RecvInto(peer, Tag(0, k), places[peer]));
    }
  }
  return std::move(flow).Finish();
}

// Up a binomial tree: a rank sends its subtree's blocks to its parent in one message. log2(ranks) steps,
// and messages at the root; (ranks / 2) log2(ranks) blocks sent in all.
Schedule GatherBinomial(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem, /*pieces=*/problem.ranks);
  const BinomialNode node(flow.rank, problem.root, flow.ranks);
  const std::vector<Slot> chunks = flow.FewChunks(InputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    const Slot in = chunks[k];
    const auto phase = static_cast<int64_t>(k);
    std::vector<Message> held;  // blocks of the subtree, in order
    if (node.is_root()) {
      flow.Copy(Out(in, flow.rank), in);
    } else {
      held.push_back(flow.Pack(in));
    }
    for (int distance = 1; distance < node.limit(); distance *= 2) {
      const int child = node.virtual_rank + distance;
      if (child >= flow.ranks) break;
      const std::vector<Slot> dsts = BlocksOf(node, node.is_root() ? Space::kOutput : Space::kScratch,
                                              child, node.ChildEnd(distance), in);
      const std::vector<Message> landed = flow.RecvAllInto(node.RankOf(child), phase, dsts);
      if (node.is_root()) {
        for (size_t i = 0; i < dsts.size(); ++i) flow.Unpack(dsts[i], landed[i]);
      } else {
        held.insert(held.end(), landed.begin(), landed.end());
      }
    }
    if (!node.is_root()) flow.SendAll(node.RankOf(node.parent()), phase, held);
  }
  return std::move(flow).Finish();
}

// The root sends every rank its block. One step, ranks - 1 blocks sent by the root.
Schedule ScatterDirect(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  ChunkSlots blocks(flow.ranks);
  for (int i = 0; i < flow.ranks; ++i) {
    if (i != flow.rank && flow.rank != problem.root) continue;
    blocks[i] = flow.Chunks(InputSlot(i, 0, BlockBytes(problem, i)));
  }
  for (size_t k = 0; k < LanesOf(blocks); ++k) {
    flow.Lane(k);
    const std::vector<Slot> slots = LaneOf(blocks, k);
    const Slot own = slots[flow.rank];
    if (flow.rank != problem.root) {
      flow.Unpack(Out(own), flow.RecvInto(problem.root, Tag(0, k), Out(own)));
      continue;
    }
    for (int step = 1; step < flow.ranks; ++step) {
      const int peer = flow.Peer(step);
      if (slots[peer].bytes() > 0) flow.Send(peer, Tag(0, k), flow.Pack(slots[peer]));
    }
    if (own.bytes() > 0) flow.Copy(Out(own), own);
  }
  return std::move(flow).Finish();
}

// Down a binomial tree, largest subtree first: a rank receives its subtree's blocks in one message and
// sends each child its part. log2(ranks) steps, and messages at the root.
Schedule ScatterBinomial(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem, /*pieces=*/problem.ranks);
  const BinomialNode node(flow.rank, problem.root, flow.ranks);
  const std::vector<Slot> chunks = flow.FewChunks(OutputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    const Slot out = chunks[k];
    const auto phase = static_cast<int64_t>(k);
    std::vector<Message> held;  // blocks of the subtree, in order, without the root's own
    if (node.is_root()) {
      for (const Slot& block : BlocksOf(node, Space::kInput, 1, flow.ranks, out)) {
        held.push_back(flow.Pack(block));
      }
    } else {
      std::vector<Slot> dsts =
          BlocksOf(node, Space::kScratch, node.virtual_rank, node.SubtreeEnd(), out);
      dsts[0] = out;
      held = flow.RecvAllInto(node.RankOf(node.parent()), phase, dsts);
    }
    const int first = node.is_root() ? 1 : node.virtual_rank;  // virtual rank of held[0]
    for (int distance = node.limit() / 2; distance >= 1; distance /= 2) {
      const int child = node.virtual_rank + distance;
      if (child >= flow.ranks) continue;
      flow.SendAll(node.RankOf(child), phase,
                   std::span(held).subspan(child - first, node.ChildEnd(distance) - child));
    }
    if (node.is_root()) {
      flow.Copy(out, In(out, flow.rank));
    } else {
      flow.Unpack(out, held[0]);
    }
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
