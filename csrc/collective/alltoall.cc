// All-to-all: block i of rank r becomes block r of rank i. A rank's own block is copied, not encoded.

#include <algorithm>
#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"

namespace jaxccomp {
namespace {

// Chunks in flight per rank in a pairwise exchange: enough to keep a link busy.
constexpr int64_t kOutstanding = 4;

// The send that the next chunk of `sent` depends on: the one kOutstanding full chunks before. With blocks
// smaller than a chunk, correspondingly more sends are in flight.
TaskId Before(const std::vector<TaskId>& sends, const std::vector<Slot>& sent,
              int64_t chunk_bytes) {
  const int64_t min_bytes = std::max<int64_t>(sent[0].bytes(), 1);
  const auto ahead =
      static_cast<size_t>(std::max(kOutstanding * chunk_bytes / min_bytes, kOutstanding));
  return sends.size() >= ahead ? sends[sends.size() - ahead] : kNoTask;
}

void CopyOwn(Flow& flow, Slot dst, Slot source) {
  const std::vector<Slot> to = flow.Chunks(dst), from = flow.Chunks(source);
  // In a ragged exchange a rank may send itself more than it receives.
  for (size_t k = 0; k < std::min(to.size(), from.size()); ++k) flow.Copy(to[k], from[k]);
}

}  // namespace

// At step s a rank sends to rank + s and receives from rank - s; ranks - 1 blocks sent per rank. The steps
// are sequential, so that a link carries the chunks of one rank at a time.
Schedule AlltoallPairwise(const Problem& problem) {
  Flow flow(problem);
  const int ranks = problem.ranks;
  const bool varying = !problem.counts.empty();
  const auto bytes_between = [&](int source, int destination) {
    return varying ? problem.counts[int64_t{source} * ranks + destination] : problem.block_bytes;
  };
  // Lane numbers must agree on all ranks: use the largest block.
  int64_t largest = problem.block_bytes;
  for (int64_t bytes : problem.counts) largest = std::max(largest, bytes);
  const size_t max_chunks = flow.Chunks(OutputSlot(0, 0, largest)).size();

  const int64_t own_bytes = bytes_between(flow.rank, flow.rank);
  CopyOwn(flow, OutputSlot(flow.rank, 0, own_bytes), InputSlot(flow.rank, 0, own_bytes));
  std::vector<TaskId> sends;
  for (int step = 1; step < ranks; ++step) {
    const int to = flow.Peer(step), from = flow.Peer(-step);
    const auto sent = flow.Chunks(InputSlot(to, 0, bytes_between(flow.rank, to)));
    const auto landed = flow.Chunks(OutputSlot(from, 0, bytes_between(from, flow.rank)));
    for (size_t k = 0; k < max_chunks; ++k) {
      flow.Lane((step - 1) * max_chunks + k);
      if (k < sent.size()) {
        const Message message = flow.Pack(sent[k], Before(sends, sent, problem.chunk_bytes));
        sends.push_back(flow.Send(to, Tag(0, k), message));
      }
      if (k < landed.size()) flow.Unpack(landed[k], flow.RecvInto(from, Tag(0, k), landed[k]));
    }
  }
  return std::move(flow).Finish();
}

// Sends and receives one range per peer directly. A rank knows only its own sizes.
Schedule RaggedAlltoallDirect(const Problem& problem) {
  Flow flow(problem);
  ChunkSlots sent(flow.ranks), landed(flow.ranks);
  for (int peer = 0; peer < problem.ranks; ++peer) {
    const int64_t from = problem.send_offsets[peer], to = problem.recv_offsets[peer];
    const Slot source = InputSlot(0, from, from + problem.send_sizes[peer]);
    const Slot dst = OutputSlot(0, to, to + problem.recv_sizes[peer]);
    if (peer == flow.rank) {
      CopyOwn(flow, dst, source);
    } else {
      sent[peer] = flow.Chunks(source);
      landed[peer] = flow.Chunks(dst);
    }
  }
  for (size_t k = 0; k < std::max(LanesOf(sent), LanesOf(landed)); ++k) {
    flow.Lane(k);
    for (int step = 1; step < flow.ranks; ++step) {
      const int to = flow.Peer(step), from = flow.Peer(-step);
      if (k < sent[to].size()) flow.Send(to, Tag(0, k), flow.Pack(sent[to][k]));
      if (k < landed[from].size()) {
        flow.Unpack(landed[from][k], flow.RecvInto(from, Tag(0, k), landed[from][k]));
      }
    }
  }
  return std::move(flow).Finish();
}

// Bruck: a block for the rank at `distance` is forwarded by the binary digits of the distance: at step s
// all blocks whose digit s is set go to rank + 2^s in one message. log2(ranks) messages of up to
// ranks / 2 blocks per rank. Blocks in transit are in Scratch; the last hop receives into Output, so no
// final rotation is needed.
Schedule AlltoallBruck(const Problem& problem) {
  Flow flow(problem, /*pieces=*/problem.ranks);
  int64_t phase = 0;
  const std::vector<Slot> chunks = flow.FewChunks(OutputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    const Slot range = chunks[k];
    // held[i]: a block with distance i from source to destination; its source is rank - (digits of i processed).
    std::vector<Message> held(flow.ranks);
    for (int i = 1; i < flow.ranks; ++i) held[i] = flow.Pack(In(range, flow.Peer(i)));
    for (int digit = 1; digit < flow.ranks; digit *= 2, ++phase) {
      std::vector<Message> sent;
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
      const std::vector<Message> landed = flow.RecvAllInto(flow.Peer(-digit), phase, dsts);
      for (size_t j = 0; j < moved.size(); ++j) {
        held[moved[j]] = landed[j];
        if (dsts[j].space == Space::kOutput) flow.Unpack(dsts[j], landed[j]);
      }
    }
    flow.Copy(Out(range, flow.rank), In(range, flow.rank));
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
