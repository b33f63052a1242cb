// Allreduce: the reduction of all ranks' blocks, bitwise equal on every rank.
//
// Output may be the operand's memory: a task that writes a range of Output depends on all tasks of its
// rank that read this range of Input.

#include <algorithm>
#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"
#include "collective/patterns/doubling.h"
#include "collective/patterns/ring.h"

namespace jaxccomp {

// Every rank sends its block to every other rank and merges all blocks at once, in rank order. One step, ranks - 1
// blocks sent per rank. With a codec a rank also decodes its own code: otherwise its sum would differ from the other
// ranks' sums.
Schedule AllreduceOneShot(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem, /*pieces=*/2);
  const std::vector<Slot> chunks = flow.Chunks(OutputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    std::vector<Slot> sources(flow.ranks);
    std::vector<TaskId> deps;
    const Message mine = flow.Pack(In(chunks[k]));
    sources[flow.rank] = mine.slot;
    for (int step = 1; step < flow.ranks; ++step) {
      deps.push_back(flow.ReaderOf(mine, flow.Send(flow.Peer(step), Tag(0, k), mine)));
    }
    for (int step = 1; step < flow.ranks; ++step) {
      const Message theirs = flow.RecvTemp(flow.Peer(-step), Tag(0, k), chunks[k]);
      sources[flow.Peer(-step)] = theirs.slot;
      deps.push_back(theirs.ready);
    }
    flow.Merge(chunks[k], std::move(sources), /*final=*/true, std::move(deps));
  }
  return std::move(flow).Finish();
}

namespace {

// Each part of the block has an owner: all ranks send the owner their values of the part; it merges them
// at once, in rank order, and sends the result to all. Chunk by chunk, so that sends and merges overlap.
// With a codec the merged part is encoded once, and all ranks, also the owner, decode this code. Part i
// belongs to rank first + i, modulo ranks; at most `ranks` parts at a time.
Schedule ByOwners(const Problem& problem, int parts, int first) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem, /*pieces=*/2);
  const int rank = flow.rank, ranks = flow.ranks;
  const std::vector<int> everybody = flow.Everybody();
  const Slot out = OutputSlot(0, 0, problem.block_bytes);
  size_t lane = 0;
  for (int round = 0; round < parts; round += ranks) {
    ChunkSlots owned(ranks);  // by owner
    for (int i = round; i < std::min(parts, round + ranks); ++i) {
      owned[Shifted(first, i % ranks, ranks)] = flow.PartChunks(out, i, parts);
    }
    const size_t end = lane + LanesOf(owned);
    for (size_t k = 0; lane < end; ++k, ++lane) {
      flow.Lane(lane);
      const std::vector<Slot> slots = LaneOf(owned, k);
      std::vector<TaskId> readers(ranks);  // of Input, by owner
      for (int step = 1; step < ranks; ++step) {
        const int owner = flow.Peer(step);
        if (slots[owner].bytes() == 0) continue;
        const Message mine = flow.Pack(In(slots[owner]));
        readers[owner] = flow.ReaderOf(mine, flow.Send(owner, Tag(0, lane), mine));
      }
      if (slots[rank].bytes() > 0) {
        const Slot dst = slots[rank];
        const TaskId merge = flow.MergeFromAll(everybody, In(dst), dst, Tag(0, lane));
        const Message merged = flow.Pack(dst, merge, /*final=*/true);
        for (int step = 1; step < ranks; ++step) flow.Send(flow.Peer(step), Tag(1, lane), merged);
        flow.Unpack(dst, merged);
      }
      for (int step = 1; step < ranks; ++step) {
        const int owner = flow.Peer(-step);
        const Slot dst = slots[owner];
        if (dst.bytes() == 0) continue;
        flow.Unpack(dst, flow.RecvInto(owner, Tag(1, lane), dst, readers[owner]), {readers[owner]});
      }
    }
  }
  return std::move(flow).Finish();
}

}  // namespace

// Direct reduce-scatter and all-gather: part i of every block goes to rank i. Two steps,
// 2 (ranks - 1) / ranks blocks sent per rank.
Schedule AllreduceTwoShot(const Problem& problem) {
  return ByOwners(problem, problem.ranks, /*first=*/0);
}

// HiPress's bipartite shape: one server per partition; the servers rotate from operation to operation. A
// small block goes to one server, as one part.
Schedule AllreduceParameterServer(const Problem& problem) {
  constexpr int64_t kMinBytes = 64 << 10;
  const int64_t sound = std::clamp<int64_t>(problem.block_bytes / kMinBytes, 1, problem.ranks);
  const int parts = problem.partitions > 0 ? problem.partitions : static_cast<int>(sound);
  return ByOwners(problem, parts, problem.rotation % problem.ranks);
}

// Ring reduce-scatter, then ring all-gather. 2 (ranks - 1) steps, 2 (ranks - 1) / ranks blocks sent per
// rank, to the successor only. Part i is merged in the order of ranks i + 1, ..., i. With a codec each hop
// of the first half encodes again; the second half forwards codes.
Schedule AllreduceRing(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem, /*pieces=*/problem.encoded && !problem.bounded ? 3 : 4);
  flow.SlimLanes();
  const ChunkSlots parts = flow.AllParts(OutputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < LanesOf(parts); ++k) {
    flow.Lane(k);
    const std::vector<Slot> outputs = LaneOf(parts, k);
    std::vector<Slot> inputs;
    for (const Slot& slot : outputs) inputs.push_back(In(slot));
    const Slot own = outputs[flow.rank];
    const RingReduced reduced = RingReduceScatter(flow, inputs, own, Tag(0, k));
    Message mine;
    if (own.bytes() > 0) {
      mine = flow.Pack(own, reduced.merged, /*final=*/true);
      flow.Unpack(own, mine);
    }
    RingAllgather(flow, outputs, mine, reduced.readers, Tag(flow.ranks, k));
  }
  return std::move(flow).Finish();
}

namespace {

// One chunk of AllreduceRecursiveDoubling.
void DoublingLane(Flow& flow, const Doubling& doubling, Slot out, size_t lane) {
  const int rank = flow.rank;
  const uint32_t hand_over = Tag(0, lane), result_low = Tag(1, lane), result_high = Tag(2, lane);
  constexpr int kFirstStep = 3;

  if (doubling.SitsOut(rank)) {
    const Message mine = flow.Pack(In(out));
    const TaskId reader = flow.ReaderOf(mine, flow.Send(rank + 1, hand_over, mine));
    if (flow.encoded) {
      const Message low = flow.RecvTemp(rank + 1, result_low, out);
      const Message high = flow.RecvTemp(rank + 1, result_high, out);
      flow.Merge(out, {low.slot, high.slot}, /*final=*/true, {low.ready, high.ready, reader});
    } else {
      flow.RecvInto(rank + 1, result_low, out, reader);
    }
    return;
  }

  Slot held = In(out);
  TaskId ready = kNoTask;
  if (doubling.StandsForTwo(rank)) {
    const Message theirs = flow.RecvTemp(rank - 1, hand_over, out);
    ready = flow.Merge(out, {theirs.slot, held}, /*final=*/false, {theirs.ready});
    held = out;
  }
  const int place = doubling.PlaceOf(rank);
  Message low, high;  // of the last step
  for (int step = 0; step < doubling.steps; ++step) {
    const int partner = place ^ (1 << step);
    const int peer = doubling.RankAt(partner);
    // At this step 2^step places have the same values.
    const int first = doubling.RankAt(place >> step << step);
    const uint32_t tag = Tag(kFirstStep + step, lane);
    const Message mine = flow.PackShared(first, tag, held, ready);
    const TaskId send = flow.Send(peer, tag, mine);
    const Message theirs = flow.RecvTemp(peer, tag, out);
    low = place < partner ? mine : theirs;
    high = place < partner ? theirs : mine;
    ready = flow.Merge(out, {low.slot, high.slot}, /*final=*/step + 1 == doubling.steps,
                       {mine.ready, theirs.ready, flow.ReaderOf(mine, send)});
    held = out;
  }
  if (doubling.StandsForTwo(rank)) {
    if (flow.encoded) {
      flow.Send(rank - 1, result_low, low);
      flow.Send(rank - 1, result_high, high);
    } else {
      flow.Send(rank - 1, result_low, {out, ready});
    }
  }
}

}  // namespace

// At step s partners at distance 2^s exchange their partial sums and merge them, lower ranks first;
// log2(ranks) steps and blocks sent per rank. If the ranks are no power of two, some first send their
// block to a neighbour, and receive the result from it. With a codec both partners merge from both codes,
// so that they have equal values; a rank that does not participate receives the two codes of the last
// step instead of the result, and computes the same bits.
Schedule AllreduceRecursiveDoubling(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(OfPartialSums(problem), /*pieces=*/4);
  const Doubling doubling(flow.ranks);
  const std::vector<Slot> chunks = flow.Chunks(OutputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    DoublingLane(flow, doubling, chunks[k], k);
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
