// What the algorithms of this folder share: tasks that look the same whether values travel
// raw or coded. A Flow hides the difference, an algorithm says only who sends what to whom.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collective/algorithm.h"
#include "collective/patterns/ring.h"
#include "collective/patterns/split.h"
#include "collective/schedule.h"

namespace jaxccomp {

// Values that can be sent: a raw slot, or the Code slot that stands for it. A parcel may be sent
// any number of times once `ready` is done.
struct Parcel {
  Slot slot;
  TaskId ready = kNoTask;
};

// How many chunks of a peer's values wait to be merged at a time; bounds the scratch memory.
inline constexpr int kWindow = 4;

// Tags are unique per sender and receiver: `phase` numbers what travels between a pair of
// ranks, `chunk` is the number of the chunk in it.
inline constexpr uint32_t Tag(int64_t phase, int64_t chunk) {
  return static_cast<uint32_t>(phase * kMaxChunks + chunk);
}

inline constexpr Slot InputSlot(int block, int64_t begin, int64_t end) {
  return {Space::kInput, block, begin, end};
}
inline constexpr Slot OutputSlot(int block, int64_t begin, int64_t end) {
  return {Space::kOutput, block, begin, end};
}
// The same range of another block.
inline constexpr Slot In(Slot range, int block = 0) {
  return InputSlot(block, range.begin, range.end);
}
inline constexpr Slot Out(Slot range, int block = 0) {
  return OutputSlot(block, range.begin, range.end);
}

class Flow {
 public:
  explicit Flow(const Problem& problem);

  const int rank;
  const int ranks;
  const bool coded;

  int Peer(int distance) const { return Shifted(rank, distance, ranks); }

  // The chunks of a slot, in order; none for an empty slot.
  std::vector<Slot> Chunks(Slot whole) const;
  // Part `index` of `ranks` of a slot that starts at 0, cut into chunks.
  std::vector<Slot> PartChunks(Slot whole, int index) const;

  // Makes `src` fit to travel, encoding it when coded; to be done once per range.
  Parcel Pack(Slot src, TaskId ready = kNoTask);
  // The same for values that other ranks hold and encode as well: all of them have to name the same
  // rank and number, for which there is no other encoding in the operation.
  Parcel PackShared(int whose, uint32_t which, Slot src, TaskId ready);
  TaskId Send(int peer, uint32_t tag, const Parcel& parcel);
  // The task after which the raw values behind a parcel that was packed and sent here may
  // be overwritten.
  TaskId ReaderOf(const Parcel& parcel, TaskId send) const { return coded ? parcel.ready : send; }

  // Receives values whose place is `dst`: right there, or as a code. Follow it with Place.
  // `before`: tasks that must be over before dst is written.
  Parcel Land(int peer, uint32_t tag, Slot dst, TaskId before = kNoTask);
  // Receives values to be merged or forwarded: into a new Scratch or Code block.
  Parcel Take(int peer, uint32_t tag, Slot range, TaskId before = kNoTask);
  // Puts a parcel's values into dst: a decode or a copy, or nothing when they are there.
  TaskId Place(Slot dst, const Parcel& parcel, std::vector<TaskId> before = {});

  // Several parcels to one peer: in one message where that is possible. Tags are
  // Tag(phase, 0 ...); the two ends use the same phase and count. `dsts` of kScratch ask for
  // new blocks (their block numbers are ignored).
  void SendAll(int peer, int64_t phase, std::span<const Parcel> parcels);
  std::vector<Parcel> LandAll(int peer, int64_t phase, std::span<const Slot> dsts);

  TaskId Copy(Slot dst, Slot src, std::vector<TaskId> deps = {});
  TaskId Merge(Slot dst, std::vector<Slot> sources, bool final, std::vector<TaskId> deps);
  Slot Scratch(Slot range) { return builder_.Scratch(range.begin, range.end); }

  // Takes one chunk from every other rank and merges them all, rank 0 first, into `dst`; `own`
  // is this rank's part in it. `freed` is the merge whose scratch memory this one may reuse.
  TaskId MergeFromAll(Slot own, Slot dst, uint32_t tag, TaskId freed);

  Schedule Finish() && { return std::move(builder_).Build(); }

 private:
  bool Grouped() const { return multi_slot_ && !coded; }

  const int64_t chunk_bytes_;
  const bool multi_slot_;
  ScheduleBuilder builder_;
};

// Per part, per chunk: a task (or kNoTask).
using ChunkTasks = std::vector<std::vector<TaskId>>;
using ChunkSlots = std::vector<std::vector<Slot>>;

// Ring reduce-scatter. parts[i]: the chunks of this rank's contribution to part i;
// result[k]: where chunk k of part `rank` goes. Bytes sent per rank: all parts but one.
struct RingReduced {
  ChunkTasks readers;           // the last task that reads parts[i][k]
  std::vector<TaskId> merged;   // per chunk of the result
};
RingReduced RingReduceScatter(Flow& flow, const ChunkSlots& parts, const std::vector<Slot>& result,
                              int64_t first_phase);

// Ring all-gather. places[i]: the chunks of part i's place; own: this rank's part, packed.
// `before`, if not null: a task that must be over before places[i][k] is written.
void RingAllgather(Flow& flow, const ChunkSlots& places, std::vector<Parcel> own,
                   const ChunkTasks* before, int64_t first_phase);

// Size of block i of the v-variants, or of any block of a uniform collective.
inline int64_t BlockBytes(const Problem& problem, int block) {
  return problem.counts.empty() ? problem.block_bytes : problem.counts[block];
}

// One rank: the result is the operand.
Schedule CopyOnly(const Problem& problem);

}  // namespace jaxccomp
