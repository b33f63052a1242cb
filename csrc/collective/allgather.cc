// All-gather: every rank's block on every rank. With a codec, a block's owner encodes it once. With a
// lossy codec the owner also decodes its own code, so that all ranks hold the same values.

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"

namespace jaxccomp {

// Every rank sends its block to every other rank. One step, ranks - 1 blocks sent per rank.
Schedule AllgatherDirect(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem, /*pieces=*/problem.encoded ? 2 : 1);
  ChunkSlots blocks(flow.ranks);
  for (int i = 0; i < flow.ranks; ++i) {
    blocks[i] = flow.Chunks(OutputSlot(i, 0, BlockBytes(problem, i)));
  }
  for (size_t k = 0; k < LanesOf(blocks); ++k) {
    flow.Lane(k);
    const std::vector<Slot> places = LaneOf(blocks, k);
    const Slot own = places[flow.rank];
    if (own.bytes() > 0) {
      const Message mine = flow.Pack(In(own));
      for (int step = 1; step < flow.ranks; ++step) flow.Send(flow.Peer(step), Tag(0, k), mine);
      flow.Unpack(own, mine);
    }
    for (int step = 1; step < flow.ranks; ++step) {
      const int peer = flow.Peer(-step);
      if (places[peer].bytes() == 0) continue;
      flow.Unpack(places[peer], flow.RecvInto(peer, Tag(0, k), places[peer]));
    }
  }
  return std::move(flow).Finish();
}

// Blocks go around a ring, chunk by chunk: ranks - 1 steps, ranks - 1 blocks sent per rank, to
// the successor only.
Schedule AllgatherRing(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem, /*pieces=*/problem.encoded ? 2 : 1);
  ChunkSlots blocks(flow.ranks);
  for (int i = 0; i < flow.ranks; ++i) {
    blocks[i] = flow.Chunks(OutputSlot(i, 0, BlockBytes(problem, i)));
  }
  for (size_t k = 0; k < LanesOf(blocks); ++k) {
    flow.Lane(k);
    const std::vector<Slot> places = LaneOf(blocks, k);
    const Slot own = places[flow.rank];
    Message mine;
    if (own.bytes() > 0) {
      mine = flow.Pack(In(own));
      flow.Unpack(own, mine);
    }
    RingAllgather(flow, places, mine, /*before=*/{}, Tag(0, k));
  }
  return std::move(flow).Finish();
}

namespace {

// Pieces to cut a chunk into. Uncoded: a message carries the blocks of up to half of the ranks, and should not be
// larger than other messages. Coded: blocks are sent one by one, and a lane holds the codes of all blocks: these take
// at most two chunks per source rank.
int BruckPieces(const Problem& problem) {
  if (!problem.encoded) return problem.ranks;
  const int sources = std::bit_width(static_cast<unsigned>(problem.ranks - 1));
  return std::max(2, (problem.ranks + 2 * sources - 1) / (2 * sources));
}

}  // namespace

// Bruck: at step s a rank sends its first 2^s blocks (its own and the blocks of the ranks after it) to
// rank - 2^s. log2(ranks) steps, ranks - 1 blocks sent per rank.
Schedule AllgatherBruck(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem, BruckPieces(problem));
  int64_t phase = 0;
  const std::vector<Slot> chunks = flow.FewChunks(OutputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    const Slot range = chunks[k];
    std::vector<Message> held = {flow.Pack(In(range))};  // blocks of rank, rank + 1, ...
    flow.Unpack(Out(range, flow.rank), held[0]);
    for (int distance = 1; distance < flow.ranks; distance *= 2, ++phase) {
      const int count = std::min(distance, flow.ranks - distance);
      flow.SendAll(flow.Peer(-distance), phase, std::span(held).first(count));
      std::vector<Slot> dsts;
      for (int i = 0; i < count; ++i) dsts.push_back(Out(range, flow.Peer(distance + i)));
      const std::vector<Message> landed = flow.RecvAllInto(flow.Peer(distance), phase, dsts);
      for (int i = 0; i < count; ++i) flow.Unpack(dsts[i], landed[i]);
      held.insert(held.end(), landed.begin(), landed.end());
    }
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
