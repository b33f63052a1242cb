// All-to-all: block i of rank r becomes block r of rank i. The own block is copied, not coded.

#include <algorithm>
#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"

namespace jaxccomp {
namespace {

// Slots by peer, sent and received straight. Everything is posted at once, in an order where at
// each step every rank has another partner.
Schedule Exchange(const Problem& problem, const std::vector<Slot>& sources,
                  const std::vector<Slot>& dsts) {
  Flow flow(problem);
  ChunkSlots sent(flow.ranks), landed(flow.ranks);
  for (int peer = 0; peer < flow.ranks; ++peer) {
    sent[peer] = flow.Chunks(sources[peer]);
    landed[peer] = flow.Chunks(dsts[peer]);
  }
  // A ragged exchange may offer itself more than it takes.
  const size_t own_count = std::min(sent[flow.rank].size(), landed[flow.rank].size());
  for (size_t k = 0; k < std::max(LanesOf(sent), LanesOf(landed)); ++k) {
    flow.Lane(k);
    for (int step = 1; step < flow.ranks; ++step) {
      const int to = flow.Peer(step), from = flow.Peer(-step);
      if (k < sent[to].size()) flow.Send(to, Tag(0, k), flow.Pack(sent[to][k]));
      if (k < landed[from].size()) {
        flow.Place(landed[from][k], flow.Land(from, Tag(0, k), landed[from][k]));
      }
    }
    if (k < own_count) flow.Copy(landed[flow.rank][k], sent[flow.rank][k]);
  }
  return std::move(flow).Finish();
}

}  // namespace

// At step s a rank sends to rank + s and receives from rank - s. ranks - 1 blocks sent per rank.
Schedule AlltoallPairwise(const Problem& problem) {
  std::vector<Slot> sources, dsts;
  const bool varying = !problem.counts.empty();
  for (int peer = 0; peer < problem.ranks; ++peer) {
    const int64_t sent_bytes =
        varying ? problem.counts[int64_t{problem.rank} * problem.ranks + peer]
                : problem.block_bytes;
    const int64_t landed_bytes =
        varying ? problem.counts[int64_t{peer} * problem.ranks + problem.rank]
                : problem.block_bytes;
    sources.push_back(InputSlot(peer, 0, sent_bytes));
    dsts.push_back(OutputSlot(peer, 0, landed_bytes));
  }
  return Exchange(problem, sources, dsts);
}

Schedule RaggedAlltoallDirect(const Problem& problem) {
  std::vector<Slot> sources, dsts;
  for (int peer = 0; peer < problem.ranks; ++peer) {
    const int64_t sent = problem.send_offsets[peer], landed = problem.recv_offsets[peer];
    sources.push_back(InputSlot(0, sent, sent + problem.send_sizes[peer]));
    dsts.push_back(OutputSlot(0, landed, landed + problem.recv_sizes[peer]));
  }
  return Exchange(problem, sources, dsts);
}

// Bruck: the block that has `distance` ranks to go travels by the binary digits of that distance;
// at step s all blocks with digit s set go to rank + 2^s together. log2(ranks) messages of up
// to ranks / 2 blocks per rank. Blocks in transit lie in scratch, on their last hop they land in
// place, so nothing is rotated or packed.
Schedule AlltoallBruck(const Problem& problem) {
  Flow flow(problem, /*pieces=*/problem.ranks);
  int64_t phase = 0;
  const std::vector<Slot> chunks = flow.FewChunks(OutputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    const Slot range = chunks[k];
    // held[i]: the block that came from rank - (the digits of i walked so far).
    std::vector<Parcel> held(flow.ranks);
    for (int i = 1; i < flow.ranks; ++i) held[i] = flow.Pack(In(range, flow.Peer(i)));
    for (int digit = 1; digit < flow.ranks; digit *= 2, ++phase) {
      std::vector<Parcel> sent;
      std::vector<int> moved;
      std::vector<Slot> dsts;
      for (int i = digit; i < flow.ranks; ++i) {
        if ((i & digit) == 0) continue;
        const bool last_hop = i < 2 * digit;
        sent.push_back(held[i]);
        moved.push_back(i);
        dsts.push_back(last_hop ? Out(range, flow.Peer(-i))
                                : Slot{Space::kScratch, 0, range.begin, range.end});
      }
      flow.SendAll(flow.Peer(digit), phase, sent);
      const std::vector<Parcel> landed = flow.LandAll(flow.Peer(-digit), phase, dsts);
      for (size_t j = 0; j < moved.size(); ++j) {
        held[moved[j]] = landed[j];
        if (dsts[j].space == Space::kOutput) flow.Place(dsts[j], landed[j]);
      }
    }
    flow.Copy(Out(range, flow.rank), In(range, flow.rank));
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
