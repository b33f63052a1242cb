// Barrier, and the operations given by (source, destination) pairs.

#include <algorithm>
#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"

namespace jaxccomp {

// Dissemination: at step s, after the message from rank - 2^(s-1), send to rank + 2^s. log2(ranks) steps
// of empty messages.
Schedule BarrierDissemination(const Problem& problem) {
  ScheduleBuilder builder;
  std::vector<TaskId> heard;
  for (int distance = 1, step = 0; distance < problem.ranks; distance *= 2, ++step) {
    builder.Send(Shifted(problem.rank, distance, problem.ranks), Tag(step, 0),
                 InputSlot(0, 0, 0), heard);
    heard.push_back(builder.Recv(Shifted(problem.rank, -distance, problem.ranks), Tag(step, 0),
                                 OutputSlot(0, 0, 0)));
  }
  return std::move(builder).Build();
}

namespace {

constexpr int32_t kSeries = 2;   // lane series: one for sending, one for receiving
static_assert(kStatusMessage >= kMaxChunks, "chunks of a message have the tags below");

// One rank's send and receive; either may be absent. Each has its own series of lanes, so that neither waits for the
// other: a peer may need the whole message before it sends its own, or this rank may. An empty message is sent too: its
// receiver waits for it. A message to the rank itself is sent like others.
Schedule TwoMessages(Problem problem) {
  const Problem::Messages& messages = *problem.messages;
  const bool encodes = problem.encoded && messages.destination >= 0 && problem.block_bytes > 0;
  const bool decodes =
      messages.received_encoded && messages.source >= 0 && messages.received_bytes > 0;
  problem.encoded = encodes || decodes;
  Flow flow(problem);
  flow.LaneSeries(kSeries);
  const auto chunks_of = [&](Slot whole) {
    std::vector<Slot> chunks = flow.Chunks(whole);
    if (chunks.empty()) chunks.push_back(whole);
    return chunks;
  };
  if (messages.destination >= 0) {
    const auto chunks = chunks_of(InputSlot(0, 0, problem.block_bytes));
    for (size_t k = 0; k < chunks.size(); ++k) {
      flow.Lane(kSeries * k);
      if (encodes) flow.Send(messages.destination, Tag(0, k), flow.Pack(chunks[k]));
      else flow.SendRaw(messages.destination, Tag(0, k), chunks[k]);
    }
  }
  if (messages.source >= 0) {
    const auto chunks = chunks_of(OutputSlot(0, 0, messages.received_bytes));
    for (size_t k = 0; k < chunks.size(); ++k) {
      flow.Lane(kSeries * k + 1);
      if (decodes) {
        flow.Unpack(chunks[k], flow.RecvInto(messages.source, Tag(0, k), chunks[k]));
      } else {
        flow.RecvRaw(messages.source, Tag(0, k), chunks[k]);
      }
    }
    if (messages.status_begin >= 0) {
      flow.Lane(1);
      flow.RecvRaw(problem.rank, kStatusMessage,
                   OutputSlot(0, messages.status_begin,
                              messages.status_begin + messages.status_bytes));
    }
  }
  return std::move(flow).Finish();
}

}  // namespace

// Each pair's block goes directly from its source to its destination; -1: no rank. A rank's pair with
// itself is a copy. All messages are posted at once, so that no order of ranks can deadlock; Output must
// therefore not share the operand's memory.
Schedule PairsDirect(const Problem& problem) {
  if (problem.messages.has_value()) return TwoMessages(problem);
  Flow flow(problem);
  const std::vector<Slot> chunks = flow.Chunks(OutputSlot(0, 0, problem.block_bytes));
  std::vector<std::pair<int, int>> pairs;  // pairs of this rank
  for (const auto& pair : problem.pairs) {
    const auto [source, destination] = pair;
    if (source < 0 || destination < 0) continue;
    if (source != flow.rank && destination != flow.rank) continue;
    if (std::find(pairs.begin(), pairs.end(), pair) == pairs.end()) pairs.push_back(pair);
  }
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    Message mine;  // packed at the first destination
    for (const auto& [source, destination] : pairs) {
      if (source == destination) {
        flow.Copy(chunks[k], In(chunks[k]));
      } else if (source == flow.rank) {
        if (mine.slot.bytes() == 0) mine = flow.Pack(In(chunks[k]));
        flow.Send(destination, Tag(0, k), mine);
      } else {
        flow.Unpack(chunks[k], flow.RecvInto(source, Tag(0, k), chunks[k]));
      }
    }
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
