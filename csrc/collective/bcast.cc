// Broadcast: one rank's block to all. With a codec, the root encodes once; other ranks forward the code and
// decode it meanwhile. With a lossy codec the root also decodes its own code, so that all ranks have the same
// values.

#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"
#include "collective/patterns/binomial.h"

namespace jaxccomp {

namespace {

// The chunks go down the chain root, root + 1, ...; each rank forwards a chunk while it receives the next.
// Steps: ranks - 1 + chunks. Every rank except the last sends the block once: for large blocks the time of
// one send by the root. `anew`: each hop decodes and encodes again.
Schedule Chain(const Problem& problem, bool anew) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  const int place = Shifted(flow.rank, -problem.root, flow.ranks);
  const int next = flow.Peer(1), previous = flow.Peer(-1);
  const std::vector<Slot> chunks = flow.Chunks(OutputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    if (place == 0) {
      const Message message = flow.Pack(In(chunks[k]));
      flow.Send(next, Tag(0, k), message);
      flow.Unpack(chunks[k], message);
      continue;
    }
    const Message message = flow.RecvInto(previous, Tag(0, k), chunks[k]);
    const bool forwards = place + 1 < flow.ranks;
    if (forwards && !anew) flow.Send(next, Tag(0, k), message);
    const TaskId placed = flow.Unpack(chunks[k], message);
    if (forwards && anew) flow.Send(next, Tag(0, k), flow.Pack(chunks[k], placed));
  }
  return std::move(flow).Finish();
}

}  // namespace

Schedule BcastChain(const Problem& problem) { return Chain(problem, /*anew=*/false); }

// For comparison: recodes at each hop, as libraries do that compress point-to-point messages.
Schedule BcastChainRecoded(const Problem& problem) { return Chain(problem, /*anew=*/true); }

// Sends the chunks down a binomial tree, largest subtree first. Steps: log2(ranks) per chunk.
Schedule BcastBinomial(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  const BinomialNode node(flow.rank, problem.root, flow.ranks);
  const std::vector<Slot> chunks = flow.Chunks(OutputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    const Message message = node.is_root()
                              ? flow.Pack(In(chunks[k]))
                              : flow.RecvInto(node.RankOf(node.parent()), Tag(0, k), chunks[k]);
    for (int distance = node.limit() / 2; distance >= 1; distance /= 2) {
      const int child = node.virtual_rank + distance;
      if (child < flow.ranks) flow.Send(node.RankOf(child), Tag(0, k), message);
    }
    flow.Unpack(chunks[k], message);
  }
  return std::move(flow).Finish();
}

// Van de Geijn: the root sends part i of the block to the i-th rank after it; then a ring all-gather
// distributes the parts. The root receives nothing. Steps: ranks - 1 of 1/ranks of the block each; the
// root sends the block twice, others once.
Schedule BcastScatterAllgather(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem, /*pieces=*/problem.encoded ? 2 : 1);
  const int ranks = flow.ranks;
  const int place = Shifted(flow.rank, -problem.root, ranks);
  const int next = flow.Peer(1), previous = flow.Peer(-1);
  const ChunkSlots parts = flow.AllParts(OutputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < LanesOf(parts); ++k) {
    flow.Lane(k);
    const std::vector<Slot> places = LaneOf(parts, k);
    std::vector<Message> messages(ranks);  // by part
    if (place == 0) {
      for (int step = 1; step <= ranks; ++step) {
        const int part = step % ranks;
        if (places[part].bytes() == 0) continue;
        messages[part] = flow.Pack(In(places[part]));
        if (part != 0) flow.Send(Shifted(problem.root, part, ranks), Tag(part, k), messages[part]);
      }
      for (int part = 0; part < ranks; ++part) {
        if (places[part].bytes() > 0) flow.Unpack(places[part], messages[part]);
      }
    } else if (places[place].bytes() > 0) {
      messages[place] = flow.RecvInto(problem.root, Tag(place, k), places[place]);
      flow.Unpack(places[place], messages[place]);
    }
    std::vector<TaskId> used;  // last readers of the previous step's message: bounds temporary memory
    for (int step = 0; step + 1 < ranks; ++step) {
      const int sent = AllgatherPart(place, step, ranks);
      const int landed = AllgatherPart(place, step + 1, ranks);
      TaskId send = kNoTask;
      if (place + 1 < ranks && places[sent].bytes() > 0) {
        send = flow.Send(next, Tag(sent, k), messages[sent]);
      }
      if (place == 0 || places[landed].bytes() == 0) continue;
      messages[landed] = flow.encoded ? flow.RecvTemp(previous, Tag(landed, k), places[landed], used)
                                   : flow.RecvInto(previous, Tag(landed, k), places[landed]);
      used = {flow.Unpack(places[landed], messages[landed]), send};
    }
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
