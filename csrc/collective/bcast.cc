// Broadcast: one rank's block to all. Values travel unchanged, so with a codec each is encoded
// once, at the root, and the code is forwarded as it is, decoded in overlap. The root too takes
// what its code decodes to, so that a lossy codec leaves the same values on all ranks.

#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"
#include "collective/patterns/binomial.h"

namespace jaxccomp {

// The chunks go down the chain root, root + 1, ..., each rank forwarding a chunk while it receives
// the next. Steps: ranks - 1 + chunks. Every rank but the last sends the block once, which
// for large blocks is as fast as the root can send at all.
Schedule BcastChain(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  const int place = Shifted(flow.rank, -problem.root, flow.ranks);
  const int next = flow.Peer(1), previous = flow.Peer(-1);
  const std::vector<Slot> chunks = flow.Chunks(OutputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < chunks.size(); ++k) {
    if (place == 0) {
      const Parcel parcel = flow.Pack(In(chunks[k]));
      flow.Send(next, Tag(0, k), parcel);
      flow.Place(chunks[k], parcel);
      continue;
    }
    const Parcel parcel = flow.Land(previous, Tag(0, k), chunks[k]);
    if (place + 1 < flow.ranks) flow.Send(next, Tag(0, k), parcel);
    flow.Place(chunks[k], parcel);
  }
  return std::move(flow).Finish();
}

// The whole block down a binomial tree, largest subtree first. Steps: log2(ranks).
Schedule BcastBinomial(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  if (problem.block_bytes == 0) return std::move(flow).Finish();
  const BinomialNode node(flow.rank, problem.root, flow.ranks);
  const Slot out = OutputSlot(0, 0, problem.block_bytes);
  const Parcel parcel = node.is_root() ? flow.Pack(In(out))
                                       : flow.Land(node.RankOf(node.parent()), Tag(0, 0), out);
  for (int distance = node.limit() / 2; distance >= 1; distance /= 2) {
    const int child = node.virtual_rank + distance;
    if (child < flow.ranks) flow.Send(node.RankOf(child), Tag(0, 0), parcel);
  }
  flow.Place(out, parcel);
  return std::move(flow).Finish();
}

// Van de Geijn: the root sends part i of the block to the i-th rank after it, then a ring
// all-gather completes everybody. The root has everything, so nothing comes back to it.
// Steps: ranks - 1 of 1/ranks of the block each; the root sends the block twice, others once.
Schedule BcastScatterAllgather(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  Flow flow(problem);
  const int ranks = flow.ranks;
  const int place = Shifted(flow.rank, -problem.root, ranks);
  const int next = flow.Peer(1), previous = flow.Peer(-1);
  const Slot out = OutputSlot(0, 0, problem.block_bytes);
  std::vector<std::vector<Slot>> chunks(ranks);
  for (int i = 0; i < ranks; ++i) chunks[i] = flow.PartChunks(out, i);

  // parcels[i]: part i as this rank holds it.
  std::vector<std::vector<Parcel>> parcels(ranks);
  if (place == 0) {
    for (int step = 1; step <= ranks; ++step) {
      const int part = step % ranks;
      for (size_t k = 0; k < chunks[part].size(); ++k) {
        parcels[part].push_back(flow.Pack(In(chunks[part][k])));
        if (part != 0) {
          flow.Send(Shifted(problem.root, part, ranks), Tag(part, k), parcels[part][k]);
        }
      }
    }
    for (int part = 0; part < ranks; ++part) {
      for (size_t k = 0; k < chunks[part].size(); ++k) {
        flow.Place(chunks[part][k], parcels[part][k]);
      }
    }
  } else {
    for (size_t k = 0; k < chunks[place].size(); ++k) {
      parcels[place].push_back(flow.Land(problem.root, Tag(place, k), chunks[place][k]));
      flow.Place(chunks[place][k], parcels[place][k]);
    }
  }
  for (int step = 0; step + 1 < ranks; ++step) {
    if (place + 1 < ranks) {
      const int sent = AllgatherPart(place, step, ranks);
      for (size_t k = 0; k < chunks[sent].size(); ++k) {
        flow.Send(next, Tag(sent, k), parcels[sent][k]);
      }
    }
    if (place == 0) continue;
    const int landed = AllgatherPart(place, step + 1, ranks);
    for (size_t k = 0; k < chunks[landed].size(); ++k) {
      parcels[landed].push_back(flow.Land(previous, Tag(landed, k), chunks[landed][k]));
      flow.Place(chunks[landed][k], parcels[landed][k]);
    }
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
