// What the algorithms of this folder share: tasks that look the same whether values travel
// raw or coded. A Flow hides the difference, an algorithm says only who sends what to whom.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "collective/algorithm.h"
#include "collective/patterns/ring.h"
#include "collective/patterns/split.h"
#include "collective/schedule.h"

namespace jaxccomp {

// Values that can be sent: a raw slot, or the Code slot that stands for it. A message may be sent
// any number of times once `ready` is done.
struct Message {
  Slot slot;
  TaskId ready = kNoTask;
  TaskId reader = kNoTask;  // the last task that reads the raw values, where they were encoded here
  Slot values = {};         // those, where they are what the code decodes to; else empty
};

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

// Chunks by rank (blocks or parts of them), in order.
using ChunkSlots = std::vector<std::vector<Slot>>;

inline size_t LanesOf(const ChunkSlots& parts) {
  size_t lanes = 0;
  for (const auto& chunks : parts) lanes = std::max(lanes, chunks.size());
  return lanes;
}

class Flow {
 public:
  // `pieces`: how many times smaller than usual chunks are, for algorithms that hold more than two
  // chunks per peer in a lane.
  explicit Flow(const Problem& problem, int pieces = 1);
  // Pieces are so small that a lane holds one chunk per peer at most. The more lanes may be under
  // way: what each of a chain of hops waits for, such as a core, others make up for.
  void SlimLanes() { builder_.SlimLanes(); }
  // Schedule::lane_series.
  void LaneSeries(int32_t count) { builder_.LaneSeries(count); }

  const int rank;
  const int ranks;
  const bool coded;

  int Peer(int distance) const { return Shifted(rank, distance, ranks); }
  // The lane (schedule.h) of what follows: the number of its chunk.
  void Lane(size_t lane) { builder_.Lane(lane); }

  // The chunks of a slot, in order; none for an empty slot.
  std::vector<Slot> Chunks(Slot whole) const;
  // The same, few enough for messages of several slots, whose tags number the slots as well.
  std::vector<Slot> FewChunks(Slot whole) const;
  // Part `index` of `parts` of a slot that starts at 0, cut into chunks.
  std::vector<Slot> PartChunks(Slot whole, int index, int parts) const;
  ChunkSlots AllParts(Slot whole) const;  // one part per rank

  // Makes `src` fit to travel, encoding it when coded; to be done once per range.
  // `final`: they are what a final merge gave. `block`: where they do not lie in Input, the block of
  // Input that they belong to.
  Message Pack(Slot src, TaskId ready = kNoTask, bool final = false, int block = 0);
  // The same for values that other ranks hold and encode as well: all of them have to name the same
  // rank and number, for which there is no other encoding in the operation.
  Message PackShared(int whose, uint32_t which, Slot src, TaskId ready);
  // The same for a reduction of some ranks' values, which Problem::bounded keeps uncoded.
  Message PackPartial(Slot src, TaskId ready, int block = 0);
  TaskId Send(int peer, uint32_t tag, const Message& message);
  // The task after which the raw values behind a message that was packed and sent here may
  // be overwritten.
  static TaskId ReaderOf(const Message& message, TaskId send) {
    return message.slot.space == Space::kCode ? message.reader : send;
  }

  // Receives values whose place is `dst`: right there, or as a code. Follow it with Unpack.
  // `before`: tasks that must be over before dst is written.
  Message RecvInto(int peer, uint32_t tag, Slot dst, TaskId before = kNoTask);
  // Receives values to be merged or forwarded: into a new Scratch or Code block.
  Message RecvTemp(int peer, uint32_t tag, Slot range, std::vector<TaskId> before = {});
  // The same for what the sender packed with PackPartial.
  Message RecvPartial(int peer, uint32_t tag, Slot range, std::vector<TaskId> before = {});
  // Puts a message's values into dst: a decode or a copy, or nothing when they are there.
  TaskId Unpack(Slot dst, const Message& message, std::vector<TaskId> before = {});

  // Several messages to one peer: in one message where that is possible. Tags are
  // Tag(phase, 0 ...); the two ends use the same phase and count. `dsts` of kScratch ask for
  // new blocks (their block numbers are ignored).
  void SendAll(int peer, int64_t phase, std::span<const Message> messages);
  std::vector<Message> RecvAllInto(int peer, int64_t phase, std::span<const Slot> dsts);

  TaskId Copy(Slot dst, Slot src, std::vector<TaskId> deps = {});
  TaskId Merge(Slot dst, std::vector<Slot> sources, bool final, std::vector<TaskId> deps);
  Slot Scratch(Slot range) { return builder_.Scratch(range.begin, range.end); }

  // Takes one chunk from every other of `team` and merges them all, in the order of `team`, into
  // `dst`; `own` is this rank's part in it, there after `ready`.
  TaskId MergeFromAll(std::span<const int> team, Slot own, Slot dst, uint32_t tag,
                      TaskId ready = kNoTask);
  // All ranks, in order.
  std::vector<int> Everybody() const;

  // Values that travel raw, whatever the codec: between ranks of one host.
  TaskId SendRaw(int peer, uint32_t tag, Slot src, std::vector<TaskId> deps = {});
  TaskId RecvRaw(int peer, uint32_t tag, Slot dst, std::vector<TaskId> deps = {});

  Schedule Finish() && { return std::move(builder_).Build(); }

 private:
  bool Grouped() const { return multi_slot_ && !coded; }
  std::vector<Slot> Cut(Slot whole, int64_t chunk_bytes) const;
  // Encodes, `whose` and `which` as ScheduleBuilder::Encode has them, and with feedback keeps the
  // compression error, on the one rank that is named, in a block of Residual.
  Message Encoded(int whose, uint32_t which, Slot code, Slot src, bool final, TaskId ready,
                  int block);

  const int64_t chunk_bytes_;
  const bool feedback_;
  const bool exact_;
  const bool codes_partial_;
  // By the block and the first byte of a range of Residual: what wrote it last.
  std::map<std::pair<int, int64_t>, TaskId> residuals_;
  const bool multi_slot_;
  ScheduleBuilder builder_;
};

// One lane of a ring reduce-scatter. parts[i]: this rank's contribution to part i, or an empty slot
// where the part has no such chunk; result: where part `rank` goes. `tag` of the lane at phase 0.
// Bytes sent per rank: all parts but one.
struct RingReduced {
  std::vector<TaskId> readers;   // by part: the last task that reads it
  TaskId merged = kNoTask;       // the result
};
RingReduced RingReduceScatter(Flow& flow, const std::vector<Slot>& parts, Slot result, uint32_t tag);

// One lane of a ring all-gather. places[i]: where part i goes, maybe empty; own: this rank's part,
// packed. `before`, if not empty: by part, a task that must be over before its place is written.
void RingAllgather(Flow& flow, const std::vector<Slot>& places, Message own,
                   std::span<const TaskId> before, uint32_t tag);

// Chunk `lane` of every part; empty slots where there is none.
std::vector<Slot> LaneOf(const ChunkSlots& parts, size_t lane);

// Size of block i of the v-variants, or of any block of a uniform collective.
inline int64_t BlockBytes(const Problem& problem, int block) {
  return problem.counts.empty() ? problem.block_bytes : problem.counts[block];
}

// The problem of an algorithm whose messages are all partial sums, or as few as the operands of some ranks.
Problem OfPartialSums(const Problem& problem);

// One rank: the result is the operand.
Schedule CopyOnly(const Problem& problem);

}  // namespace jaxccomp
