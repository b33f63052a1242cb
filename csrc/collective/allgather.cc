// All-gather: every rank's block on every rank. With a codec each block is encoded once, by
// its owner, who decodes its own code as well: all ranks hold the same values.

#include <algorithm>
#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"

namespace jaxccomp {

// Everyone sends its block to everyone. One step, ranks - 1 blocks sent per rank.
Schedule AllgatherDirect(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  ChunkSlots places(flow.ranks);
  size_t chunk_count = 0;
  for (int i = 0; i < flow.ranks; ++i) {
    places[i] = flow.Chunks(OutputSlot(i, 0, BlockBytes(problem, i)));
    chunk_count = std::max(chunk_count, places[i].size());
  }
  for (size_t k = 0; k < chunk_count; ++k) {
    if (k < places[flow.rank].size()) {
      const Slot own = places[flow.rank][k];
      const Parcel mine = flow.Pack(In(own));
      for (int step = 1; step < flow.ranks; ++step) flow.Send(flow.Peer(step), Tag(0, k), mine);
      flow.Place(own, mine);
    }
    for (int step = 1; step < flow.ranks; ++step) {
      const int peer = flow.Peer(-step);
      if (k >= places[peer].size()) continue;
      flow.Place(places[peer][k], flow.Land(peer, Tag(0, k), places[peer][k]));
    }
  }
  return std::move(flow).Finish();
}

// Blocks go around a ring, chunk by chunk: ranks - 1 steps, ranks - 1 blocks sent per rank, to
// the successor only.
Schedule AllgatherRing(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  ChunkSlots places(flow.ranks);
  for (int i = 0; i < flow.ranks; ++i) {
    places[i] = flow.Chunks(OutputSlot(i, 0, BlockBytes(problem, i)));
  }
  std::vector<Parcel> own;
  for (const Slot& chunk : places[flow.rank]) {
    own.push_back(flow.Pack(In(chunk)));
    flow.Place(chunk, own.back());
  }
  RingAllgather(flow, places, std::move(own), /*before=*/nullptr, /*first_phase=*/0);
  return std::move(flow).Finish();
}

// Bruck: at step s a rank sends the first 2^s blocks it has (its own and those of the ranks after
// it) to the rank 2^s before it. log2(ranks) steps, ranks - 1 blocks sent per rank.
Schedule AllgatherBruck(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  const Slot range = OutputSlot(0, 0, problem.block_bytes);
  if (range.bytes() == 0) return std::move(flow).Finish();
  std::vector<Parcel> held = {flow.Pack(In(range))};  // blocks of rank, rank + 1, ...
  flow.Place(Out(range, flow.rank), held[0]);
  for (int distance = 1, step = 0; distance < flow.ranks; distance *= 2, ++step) {
    const int count = std::min(distance, flow.ranks - distance);
    flow.SendAll(flow.Peer(-distance), step, std::span(held).first(count));
    std::vector<Slot> dsts;
    for (int i = 0; i < count; ++i) dsts.push_back(Out(range, flow.Peer(distance + i)));
    const std::vector<Parcel> landed = flow.LandAll(flow.Peer(distance), step, dsts);
    for (int i = 0; i < count; ++i) flow.Place(dsts[i], landed[i]);
    held.insert(held.end(), landed.begin(), landed.end());
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
