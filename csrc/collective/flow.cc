#include "collective/flow.h"

#include <algorithm>
#include <utility>

namespace jaxccomp {

Flow::Flow(const Problem& problem)
    : rank(problem.rank),
      ranks(problem.ranks),
      coded(problem.coded),
      chunk_bytes_(problem.chunk_bytes),
      multi_slot_(problem.multi_slot) {}

std::vector<Slot> Flow::Chunks(Slot whole) const {
  const int64_t chunk_bytes = ChunkBytes(whole.bytes(), chunk_bytes_);
  std::vector<Slot> chunks;
  chunks.reserve(whole.bytes() / chunk_bytes + 1);
  for (int64_t begin = whole.begin; begin < whole.end; begin += chunk_bytes) {
    chunks.push_back(
        {whole.space, whole.block, begin, std::min(whole.end, begin + chunk_bytes)});
  }
  return chunks;
}

std::vector<Slot> Flow::PartChunks(Slot whole, int index) const {
  return Chunks({whole.space, whole.block, PartBegin(whole.end, index, ranks),
                 PartBegin(whole.end, index + 1, ranks)});
}

Parcel Flow::Pack(Slot src, TaskId ready) {
  if (!coded) return {src, ready};
  const Slot code = builder_.Code(src.begin, src.end);
  return {code, builder_.Encode(rank, static_cast<uint32_t>(code.block), code, src, {ready})};
}

Parcel Flow::PackShared(int whose, uint32_t which, Slot src, TaskId ready) {
  if (!coded) return {src, ready};
  const Slot code = builder_.Code(src.begin, src.end);
  return {code, builder_.Encode(whose, which, code, src, {ready})};
}

TaskId Flow::Send(int peer, uint32_t tag, const Parcel& parcel) {
  return builder_.Send(peer, tag, parcel.slot, {parcel.ready});
}

Parcel Flow::Land(int peer, uint32_t tag, Slot dst, TaskId before) {
  if (coded) return Take(peer, tag, dst);
  return {dst, builder_.Recv(peer, tag, dst, {before})};
}

Parcel Flow::Take(int peer, uint32_t tag, Slot range, TaskId before) {
  const Slot slot =
      coded ? builder_.Code(range.begin, range.end) : builder_.Scratch(range.begin, range.end);
  return {slot, builder_.Recv(peer, tag, slot, {before})};
}

TaskId Flow::Place(Slot dst, const Parcel& parcel, std::vector<TaskId> before) {
  if (parcel.slot == dst) return parcel.ready;
  before.push_back(parcel.ready);
  if (parcel.slot.space == Space::kCode) {
    return builder_.Decode(dst, parcel.slot, std::move(before));
  }
  return builder_.Copy(dst, parcel.slot, std::move(before));
}

void Flow::SendAll(int peer, int64_t phase, std::span<const Parcel> parcels) {
  if (!Grouped() || parcels.size() < 2) {
    for (size_t i = 0; i < parcels.size(); ++i) Send(peer, Tag(phase, i), parcels[i]);
    return;
  }
  std::vector<Slot> slots;
  std::vector<TaskId> ready;
  for (const Parcel& parcel : parcels) {
    slots.push_back(parcel.slot);
    ready.push_back(parcel.ready);
  }
  builder_.SendGroup(peer, Tag(phase, 0), std::move(slots), std::move(ready));
}

std::vector<Parcel> Flow::LandAll(int peer, int64_t phase, std::span<const Slot> dsts) {
  std::vector<Parcel> parcels;
  parcels.reserve(dsts.size());
  if (Grouped() && dsts.size() >= 2) {
    std::vector<Slot> slots(dsts.begin(), dsts.end());
    for (Slot& slot : slots) {
      if (slot.space == Space::kScratch) slot = Scratch(slot);
    }
    const TaskId recv = builder_.RecvGroup(peer, Tag(phase, 0), slots);
    for (const Slot& slot : slots) parcels.push_back({slot, recv});
    return parcels;
  }
  for (size_t i = 0; i < dsts.size(); ++i) {
    const bool scratch = dsts[i].space == Space::kScratch;
    parcels.push_back(scratch ? Take(peer, Tag(phase, i), dsts[i])
                              : Land(peer, Tag(phase, i), dsts[i]));
  }
  return parcels;
}

TaskId Flow::Copy(Slot dst, Slot src, std::vector<TaskId> deps) {
  return builder_.Copy(dst, src, std::move(deps));
}

TaskId Flow::Merge(Slot dst, std::vector<Slot> sources, bool final, std::vector<TaskId> deps) {
  return builder_.Merge(dst, std::move(sources), final, std::move(deps));
}

TaskId Flow::MergeFromAll(Slot own, Slot dst, uint32_t tag, TaskId freed) {
  std::vector<Slot> sources(ranks);
  std::vector<TaskId> deps;
  deps.reserve(ranks);
  sources[rank] = own;
  for (int step = 1; step < ranks; ++step) {
    const int peer = Peer(-step);
    const Parcel theirs = Take(peer, tag, dst, freed);
    sources[peer] = theirs.slot;
    deps.push_back(theirs.ready);
  }
  return Merge(dst, std::move(sources), /*final=*/true, std::move(deps));
}

RingReduced RingReduceScatter(Flow& flow, const ChunkSlots& parts, const std::vector<Slot>& result,
                              int64_t first_phase) {
  const int next = flow.Peer(1), previous = flow.Peer(-1);
  RingReduced reduced;
  reduced.readers.resize(flow.ranks);
  const int first = ReduceScatterPart(flow.rank, 0, flow.ranks);
  std::vector<Parcel> held;  // what goes to the successor at this step
  for (const Slot& chunk : parts[first]) held.push_back(flow.Pack(chunk));
  std::vector<TaskId> last_readers;  // of what was held at the step before
  for (int step = 0; step + 1 < flow.ranks; ++step) {
    const int sent = ReduceScatterPart(flow.rank, step, flow.ranks);
    const int taken = ReduceScatterPart(flow.rank, step + 1, flow.ranks);
    const bool last = step + 2 == flow.ranks;
    std::vector<TaskId> readers;
    std::vector<Parcel> merged;
    for (size_t k = 0; k < std::max(held.size(), parts[taken].size()); ++k) {
      if (k < held.size()) {
        const TaskId send = flow.Send(next, Tag(first_phase + sent, k), held[k]);
        readers.push_back(flow.ReaderOf(held[k], send));
      }
      if (k >= parts[taken].size()) continue;
      const Slot own = parts[taken][k];
      // Waiting for the forwarding of one step ago keeps two parts of scratch at a time. It
      // cannot close a circle: it only ever waits for earlier steps of the successors.
      const TaskId freed = last_readers.empty()
                               ? kNoTask
                               : last_readers[std::min(k, last_readers.size() - 1)];
      const Parcel theirs = flow.Take(previous, Tag(first_phase + taken, k), own, freed);
      const Slot dst = last          ? result[k]
                       : flow.coded  ? flow.Scratch(own)
                                     : theirs.slot;
      const TaskId merge = flow.Merge(dst, {theirs.slot, own}, last, {theirs.ready});
      reduced.readers[taken].push_back(merge);
      if (last) {
        reduced.merged.push_back(merge);
      } else {
        merged.push_back(flow.Pack(dst, merge));
      }
    }
    if (step == 0) reduced.readers[first] = readers;
    last_readers = std::move(readers);
    held = std::move(merged);
  }
  return reduced;
}

void RingAllgather(Flow& flow, const ChunkSlots& places, std::vector<Parcel> own,
                   const ChunkTasks* before, int64_t first_phase) {
  const int next = flow.Peer(1), previous = flow.Peer(-1);
  std::vector<Parcel> held = std::move(own);
  for (int step = 0; step + 1 < flow.ranks; ++step) {
    const int sent = AllgatherPart(flow.rank, step, flow.ranks);
    const int landed = AllgatherPart(flow.rank, step + 1, flow.ranks);
    std::vector<Parcel> got;
    for (size_t k = 0; k < std::max(held.size(), places[landed].size()); ++k) {
      if (k < held.size()) flow.Send(next, Tag(first_phase + sent, k), held[k]);
      if (k >= places[landed].size()) continue;
      const Slot dst = places[landed][k];
      const TaskId free = before == nullptr ? kNoTask : (*before)[landed][k];
      got.push_back(flow.Land(previous, Tag(first_phase + landed, k), dst, free));
      flow.Place(dst, got.back(), {free});
    }
    held = std::move(got);
  }
}

Schedule CopyOnly(const Problem& problem) {
  Flow flow(problem);
  const int64_t bytes = BlockBytes(problem, 0);
  for (const Slot& chunk : flow.Chunks(OutputSlot(0, 0, bytes))) flow.Copy(chunk, In(chunk));
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
