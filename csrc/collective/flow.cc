#include "collective/flow.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace jaxccomp {

// The maximum number of chunks with grouped messages. Each chunk uses a phase per step, and a tag has 16 bits for the
// phase: 2048 chunks leave room for 32 steps.
constexpr int64_t kFewChunks = 2048;

Flow::Flow(const Problem& problem, int pieces)
    : rank(problem.rank),
      ranks(problem.ranks),
      encoded(problem.encoded),
      chunk_bytes_(problem.chunk_bytes / pieces),
      feedback_(problem.feedback),
      exact_(problem.exact),
      codes_partial_(problem.encoded && !problem.bounded),
      multi_slot_(problem.multi_slot) {}

std::vector<Slot> Flow::Cut(Slot whole, int64_t chunk_bytes) const {
  std::vector<Slot> chunks;
  chunks.reserve(whole.bytes() / chunk_bytes + 1);
  for (int64_t begin = whole.begin; begin < whole.end; begin += chunk_bytes) {
    chunks.push_back(
        {whole.space, whole.block, begin, std::min(whole.end, begin + chunk_bytes)});
  }
  return chunks;
}

std::vector<Slot> Flow::Chunks(Slot whole) const {
  return Cut(whole, ChunkBytes(whole.bytes(), chunk_bytes_));
}

std::vector<Slot> Flow::FewChunks(Slot whole) const {
  return Cut(whole, ChunkBytes(whole.bytes(), std::max(chunk_bytes_, whole.bytes() / kFewChunks)));
}

std::vector<Slot> Flow::PartChunks(Slot whole, int index, int parts) const {
  // Use the whole slot's chunk length, so that the chunk numbers of all parts fit a tag.
  return Cut({whole.space, whole.block, PartBegin(whole.end, index, parts),
              PartBegin(whole.end, index + 1, parts)},
             ChunkBytes(whole.bytes(), chunk_bytes_));
}

ChunkSlots Flow::AllParts(Slot whole) const {
  ChunkSlots parts(ranks);
  for (int i = 0; i < ranks; ++i) parts[i] = PartChunks(whole, i, ranks);
  return parts;
}

Message Flow::Pack(Slot src, TaskId ready, bool final, int block) {
  if (!encoded) return {src, ready};
  const Slot code = builder_.Code(src.begin, src.end);
  return Encoded(rank, static_cast<uint32_t>(code.block), code, src, final, ready,
                 src.space == Space::kInput ? src.block : block);
}

Message Flow::PackPartial(Slot src, TaskId ready, int block) {
  return codes_partial_ ? Pack(src, ready, /*final=*/false, block) : Message{src, ready};
}

Message Flow::PackShared(int whose, uint32_t which, Slot src, TaskId ready) {
  if (!encoded) return {src, ready};
  return Encoded(whose, which, builder_.Code(src.begin, src.end), src, /*final=*/false, ready,
                 /*block=*/0);
}

Message Flow::Encoded(int whose, uint32_t which, Slot code, Slot src, bool final, TaskId ready,
                      int block) {
  const TaskId encode = builder_.Encode(whose, which, code, src, {ready});
  if (!feedback_ || whose != rank) return {code, encode, encode, exact_ ? src : Slot()};
  const auto [last, first] = residuals_.try_emplace({block, src.begin}, kNoTask);
  const Slot residual{Space::kResidual, block, src.begin, src.end};
  last->second = builder_.Residual(residual, src, code, final, /*more=*/!first, {encode, last->second});
  return {code, encode, last->second};
}

TaskId Flow::Send(int peer, uint32_t tag, const Message& message) {
  return builder_.Send(peer, tag, message.slot, {message.ready});
}

Message Flow::RecvInto(int peer, uint32_t tag, Slot dst, TaskId before) {
  if (encoded) return RecvTemp(peer, tag, dst);
  return {dst, builder_.Recv(peer, tag, dst, {before})};
}

Message Flow::RecvTemp(int peer, uint32_t tag, Slot range, std::vector<TaskId> before) {
  const Slot slot =
      encoded ? builder_.Code(range.begin, range.end) : builder_.Scratch(range.begin, range.end);
  return {slot, builder_.Recv(peer, tag, slot, std::move(before))};
}

Message Flow::RecvPartial(int peer, uint32_t tag, Slot range, std::vector<TaskId> before) {
  if (codes_partial_) return RecvTemp(peer, tag, range, std::move(before));
  const Slot slot = Scratch(range);
  return {slot, builder_.Recv(peer, tag, slot, std::move(before))};
}

TaskId Flow::Unpack(Slot dst, const Message& message, std::vector<TaskId> before) {
  if (message.slot == dst || message.values == dst) return message.ready;
  before.push_back(message.ready);
  if (message.reader != message.ready) before.push_back(message.reader);
  if (message.values.bytes() > 0) return builder_.Copy(dst, message.values, std::move(before));
  if (message.slot.space == Space::kCode) {
    return builder_.Decode(dst, message.slot, std::move(before));
  }
  return builder_.Copy(dst, message.slot, std::move(before));
}

void Flow::SendAll(int peer, int64_t phase, std::span<const Message> messages) {
  if (!Grouped() || messages.size() < 2) {
    for (size_t i = 0; i < messages.size(); ++i) Send(peer, Tag(phase, i), messages[i]);
    return;
  }
  std::vector<Slot> slots;
  std::vector<TaskId> ready;
  for (const Message& message : messages) {
    slots.push_back(message.slot);
    ready.push_back(message.ready);
  }
  builder_.SendGroup(peer, Tag(phase, 0), std::move(slots), std::move(ready));
}

std::vector<Message> Flow::RecvAllInto(int peer, int64_t phase, std::span<const Slot> dsts) {
  std::vector<Message> messages;
  messages.reserve(dsts.size());
  if (Grouped() && dsts.size() >= 2) {
    std::vector<Slot> slots(dsts.begin(), dsts.end());
    for (Slot& slot : slots) {
      if (slot.space == Space::kScratch) slot = Scratch(slot);
    }
    const TaskId recv = builder_.RecvGroup(peer, Tag(phase, 0), slots);
    for (const Slot& slot : slots) messages.push_back({slot, recv});
    return messages;
  }
  for (size_t i = 0; i < dsts.size(); ++i) {
    const bool scratch = dsts[i].space == Space::kScratch;
    messages.push_back(scratch ? RecvTemp(peer, Tag(phase, i), dsts[i])
                              : RecvInto(peer, Tag(phase, i), dsts[i]));
  }
  return messages;
}

TaskId Flow::Copy(Slot dst, Slot src, std::vector<TaskId> deps) {
  return builder_.Copy(dst, src, std::move(deps));
}

TaskId Flow::Merge(Slot dst, std::vector<Slot> sources, bool final, std::vector<TaskId> deps) {
  return builder_.Merge(dst, std::move(sources), final, std::move(deps));
}

TaskId Flow::MergeFromAll(std::span<const int> team, Slot own, Slot dst, uint32_t tag,
                          TaskId ready) {
  const auto members = static_cast<int>(team.size());
  const auto place =
      static_cast<int>(std::find(team.begin(), team.end(), rank) - team.begin());
  std::vector<Slot> sources(members);
  std::vector<TaskId> deps = {ready};
  deps.reserve(members);
  sources[place] = own;
  for (int step = 1; step < members; ++step) {
    const int from = Shifted(place, -step, members);
    const Message theirs = RecvTemp(team[from], tag, dst);
    sources[from] = theirs.slot;
    deps.push_back(theirs.ready);
  }
  return Merge(dst, std::move(sources), /*final=*/true, std::move(deps));
}

std::vector<int> Flow::Everybody() const {
  std::vector<int> everybody(ranks);
  std::iota(everybody.begin(), everybody.end(), 0);
  return everybody;
}

TaskId Flow::SendRaw(int peer, uint32_t tag, Slot src, std::vector<TaskId> deps) {
  return builder_.Send(peer, tag, src, std::move(deps));
}

TaskId Flow::RecvRaw(int peer, uint32_t tag, Slot dst, std::vector<TaskId> deps) {
  return builder_.Recv(peer, tag, dst, std::move(deps));
}

std::vector<Slot> LaneOf(const ChunkSlots& parts, size_t lane) {
  std::vector<Slot> slots;
  slots.reserve(parts.size());
  for (const auto& chunks : parts) slots.push_back(lane < chunks.size() ? chunks[lane] : Slot());
  return slots;
}

RingReduced RingReduceScatter(Flow& flow, const std::vector<Slot>& parts, Slot result,
                              uint32_t tag) {
  const int next = flow.Peer(1), previous = flow.Peer(-1);
  RingReduced reduced;
  reduced.readers.resize(flow.ranks, kNoTask);
  Message held;                 // the message to the successor at this step, if any
  std::vector<TaskId> used;    // last readers of the previous step's message
  for (int step = 0; step + 1 < flow.ranks; ++step) {
    const int sent = ReduceScatterPart(flow.rank, step, flow.ranks);
    const int taken = ReduceScatterPart(flow.rank, step + 1, flow.ranks);
    const bool last = step + 2 == flow.ranks;
    TaskId send = kNoTask;
    if (parts[sent].bytes() > 0) {
      if (step == 0) held = flow.Pack(parts[sent]);
      send = flow.Send(next, tag + Tag(sent, 0), held);
      if (step == 0) reduced.readers[sent] = flow.ReaderOf(held, send);
    }
    if (parts[taken].bytes() > 0) {
      // The receive waits for the readers of the previous step's message: this bounds temporary memory. It cannot
      // deadlock, since these readers wait only for earlier steps of the successors.
      const uint32_t from_tag = tag + Tag(taken, 0);
      const Message theirs = step == 0 ? flow.RecvTemp(previous, from_tag, parts[taken], used)
                                       : flow.RecvPartial(previous, from_tag, parts[taken], used);
      const Slot dst = last                                  ? result
                       : theirs.slot.space == Space::kCode ? flow.Scratch(parts[taken])
                                                             : theirs.slot;
      const TaskId merge = flow.Merge(dst, {theirs.slot, parts[taken]}, last, {theirs.ready});
      reduced.readers[taken] = merge;
      used = {merge, send, held.reader};
      if (last) {
        reduced.merged = merge;
      } else {
        held = flow.PackPartial(dst, merge, parts[taken].block);
      }
    }
  }
  return reduced;
}

void RingAllgather(Flow& flow, const std::vector<Slot>& places, Message own,
                   std::span<const TaskId> before, uint32_t tag) {
  const int next = flow.Peer(1), previous = flow.Peer(-1);
  Message held = own;
  std::vector<TaskId> used;  // last readers of the previous step's message
  for (int step = 0; step + 1 < flow.ranks; ++step) {
    const int sent = AllgatherPart(flow.rank, step, flow.ranks);
    const int landed = AllgatherPart(flow.rank, step + 1, flow.ranks);
    const TaskId send = places[sent].bytes() > 0 ? flow.Send(next, tag + Tag(sent, 0), held)
                                                 : kNoTask;
    if (places[landed].bytes() > 0) {
      const TaskId free = before.empty() ? kNoTask : before[landed];
      held = flow.encoded ? flow.RecvTemp(previous, tag + Tag(landed, 0), places[landed], used)
                        : flow.RecvInto(previous, tag + Tag(landed, 0), places[landed], free);
      used = {flow.Unpack(places[landed], held, {free}), send};
    }
  }
}

Problem OfPartialSums(const Problem& problem) {
  Problem plain = problem;
  plain.encoded = problem.encoded && !problem.bounded;
  return plain;
}

Schedule CopyOnly(const Problem& problem) {
  Flow flow(problem);
  const int64_t bytes = BlockBytes(problem, 0);
  for (const Slot& chunk : flow.Chunks(OutputSlot(0, 0, bytes))) flow.Copy(chunk, In(chunk));
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
