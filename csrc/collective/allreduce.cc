// Allreduce: the reduction of all ranks' blocks, on every rank and bitwise the same there.
//
// Output may be the operand's memory: a task that writes a range of Output comes after all
// tasks of its rank that read that range of Input.

#include <algorithm>
#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"
#include "collective/patterns/doubling.h"

namespace jaxccomp {

// Everyone sends its block to everyone and merges all of them at once, in rank order. One step,
// ranks - 1 blocks sent per rank. With a codec a rank takes its own values from its own
// code too, as the others do, or its sum would differ from theirs.
Schedule AllreduceOneShot(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  const Slot out = OutputSlot(0, 0, problem.block_bytes);
  if (out.bytes() == 0) return std::move(flow).Finish();
  std::vector<Slot> sources(flow.ranks);
  std::vector<TaskId> deps;
  const Parcel mine = flow.Pack(In(out));
  sources[flow.rank] = mine.slot;
  for (int step = 1; step < flow.ranks; ++step) {
    deps.push_back(flow.ReaderOf(mine, flow.Send(flow.Peer(step), Tag(0, 0), mine)));
  }
  for (int step = 1; step < flow.ranks; ++step) {
    const Parcel theirs = flow.Take(flow.Peer(-step), Tag(0, 0), out);
    sources[flow.Peer(-step)] = theirs.slot;
    deps.push_back(theirs.ready);
  }
  flow.Merge(out, std::move(sources), /*final=*/true, std::move(deps));
  return std::move(flow).Finish();
}

// Direct reduce-scatter and all-gather: part i of every block goes to rank i, which merges all
// of them at once, in rank order, and sends the result to everyone. Two steps, chunk by chunk
// so that wire and merge overlap; 2 (ranks - 1) / ranks blocks sent per rank. With a codec
// the merged part is encoded once and everyone, its owner too, decodes that code.
Schedule AllreduceTwoShot(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  const int rank = flow.rank, ranks = flow.ranks;
  const Slot out = OutputSlot(0, 0, problem.block_bytes);
  ChunkSlots parts(ranks);
  for (int i = 0; i < ranks; ++i) parts[i] = flow.PartChunks(out, i);
  size_t chunk_count = 0;
  for (const auto& part : parts) chunk_count = std::max(chunk_count, part.size());

  std::vector<TaskId> merges;
  std::vector<TaskId> readers(ranks);  // of this chunk of Input, by part
  for (size_t k = 0; k < chunk_count; ++k) {
    for (int step = 1; step < ranks; ++step) {
      const int owner = flow.Peer(step);
      if (k >= parts[owner].size()) continue;
      const Parcel mine = flow.Pack(In(parts[owner][k]));
      readers[owner] = flow.ReaderOf(mine, flow.Send(owner, Tag(0, k), mine));
    }
    if (k < parts[rank].size()) {
      const Slot dst = parts[rank][k];
      merges.push_back(flow.MergeFromAll(In(dst), dst, Tag(0, k),
                                         k >= kWindow ? merges[k - kWindow] : kNoTask));
      const Parcel merged = flow.Pack(dst, merges.back());
      for (int step = 1; step < ranks; ++step) flow.Send(flow.Peer(step), Tag(1, k), merged);
      flow.Place(dst, merged);
    }
    for (int step = 1; step < ranks; ++step) {
      const int owner = flow.Peer(-step);
      if (k >= parts[owner].size()) continue;
      const Slot dst = parts[owner][k];
      const Parcel result = flow.Land(owner, Tag(1, k), dst, readers[owner]);
      flow.Place(dst, result, {readers[owner]});
    }
  }
  return std::move(flow).Finish();
}

// Ring reduce-scatter, then ring all-gather. 2 (ranks - 1) steps, 2 (ranks - 1) / ranks
// blocks sent per rank, to the successor only. Part i is merged in the order of ranks i + 1,
// ..., i. With a codec each hop of the first half encodes anew; the second half forwards codes.
Schedule AllreduceRing(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  const Slot out = OutputSlot(0, 0, problem.block_bytes);
  ChunkSlots outputs(flow.ranks), inputs(flow.ranks);
  for (int i = 0; i < flow.ranks; ++i) {
    outputs[i] = flow.PartChunks(out, i);
    for (const Slot& chunk : outputs[i]) inputs[i].push_back(In(chunk));
  }
  const std::vector<Slot>& own = outputs[flow.rank];
  const RingReduced reduced = RingReduceScatter(flow, inputs, own, /*first_phase=*/0);
  std::vector<Parcel> parcels;
  for (size_t k = 0; k < own.size(); ++k) {
    parcels.push_back(flow.Pack(own[k], reduced.merged[k]));
    flow.Place(own[k], parcels[k]);
  }
  RingAllgather(flow, outputs, std::move(parcels), &reduced.readers, /*first_phase=*/flow.ranks);
  return std::move(flow).Finish();
}

// At step s partners at distance 2^s exchange all they have and merge, lower ranks first; log2
// of ranks steps, as many blocks sent per rank. With more ranks than a power of two, some hand
// their block to a neighbour first and get the result from it. With a codec both partners
// merge from both codes, so that they keep identical values; a rank that sat out gets the two
// codes of the last step instead of its result, and comes to the same bits.
Schedule AllreduceRecursiveDoubling(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  const Doubling doubling(flow.ranks);
  const int rank = flow.rank;
  const Slot out = OutputSlot(0, 0, problem.block_bytes);
  if (out.bytes() == 0) return std::move(flow).Finish();
  constexpr uint32_t kHandOver = Tag(0, 0), kResultLow = Tag(0, 1), kResultHigh = Tag(0, 2);

  if (doubling.SitsOut(rank)) {
    const Parcel mine = flow.Pack(In(out));
    const TaskId reader = flow.ReaderOf(mine, flow.Send(rank + 1, kHandOver, mine));
    if (flow.coded) {
      const Parcel low = flow.Take(rank + 1, kResultLow, out);
      const Parcel high = flow.Take(rank + 1, kResultHigh, out);
      flow.Merge(out, {low.slot, high.slot}, /*final=*/true, {low.ready, high.ready, reader});
    } else {
      flow.Land(rank + 1, kResultLow, out, reader);
    }
    return std::move(flow).Finish();
  }

  Slot held = In(out);
  TaskId ready = kNoTask;
  if (doubling.StandsForTwo(rank)) {
    const Parcel theirs = flow.Take(rank - 1, kHandOver, out);
    ready = flow.Merge(out, {theirs.slot, held}, /*final=*/false, {theirs.ready});
    held = out;
  }
  const int place = doubling.PlaceOf(rank);
  Parcel low, high;  // of the last step
  for (int step = 0; step < doubling.steps; ++step) {
    const int partner = place ^ (1 << step);
    const int peer = doubling.RankAt(partner);
    // By now 2^step places hold the same values.
    const int first = doubling.RankAt(place >> step << step);
    const Parcel mine = flow.PackShared(first, static_cast<uint32_t>(step), held, ready);
    const TaskId send = flow.Send(peer, Tag(1 + step, 0), mine);
    const Parcel theirs = flow.Take(peer, Tag(1 + step, 0), out);
    low = place < partner ? mine : theirs;
    high = place < partner ? theirs : mine;
    ready = flow.Merge(out, {low.slot, high.slot}, /*final=*/step + 1 == doubling.steps,
                       {mine.ready, theirs.ready, flow.ReaderOf(mine, send)});
    held = out;
  }
  if (doubling.StandsForTwo(rank)) {
    if (flow.coded) {
      flow.Send(rank - 1, kResultLow, low);
      flow.Send(rank - 1, kResultHigh, high);
    } else {
      flow.Send(rank - 1, kResultLow, {out, ready});
    }
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
