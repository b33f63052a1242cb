// Helpers of the algorithms in this folder. A Flow adds the tasks that sending and receiving need with and
// without a codec, so that an algorithm has only the communication pattern.
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

// Values to send: a raw slot, or the Code slot with their encoding. A message may be sent any number of
// times after `ready`.
struct Message {
  Slot slot;
  TaskId ready = kNoTask;
  TaskId reader = kNoTask;  // the last task that reads the raw values, if they were encoded here
  Slot values = {};         // the raw values if equal to the decoded ones; else empty
};

// Tags are unique per sender and receiver: `phase` numbers the transfers between a pair of ranks,
// `chunk` the chunks of a transfer.
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

// The chunks of each rank's block or part, in order.
using ChunkSlots = std::vector<std::vector<Slot>>;

inline size_t LanesOf(const ChunkSlots& parts) {
  size_t lanes = 0;
  for (const auto& chunks : parts) lanes = std::max(lanes, chunks.size());
  return lanes;
}

class Flow {
 public:
  // `pieces`: divides the usual chunk size, for algorithms that hold more than two chunks per peer in a
  // lane.
  explicit Flow(const Problem& problem, int pieces = 1);
  // Sets Schedule::slim_lanes. Requires `pieces` with which a lane holds at most one chunk per peer. More lanes then
  // run at once, and hide the delays in a chain of hops, such as waiting for a core.
  void SlimLanes() { builder_.SlimLanes(); }
  // Schedule::lane_series.
  void LaneSeries(int32_t count) { builder_.LaneSeries(count); }

  const int rank;
  const int ranks;
  const bool encoded;

  int Peer(int distance) const { return Shifted(rank, distance, ranks); }
  // The lane (schedule.h) of the following tasks: the number of their chunk.
  void Lane(size_t lane) { builder_.Lane(lane); }

  // The chunks of a slot, in order; none for an empty slot.
  std::vector<Slot> Chunks(Slot whole) const;
  // The same, but few enough for grouped messages, whose tags also number the slots.
  std::vector<Slot> FewChunks(Slot whole) const;
  // Part `index` of `parts` of a slot that starts at 0, cut into chunks.
  std::vector<Slot> PartChunks(Slot whole, int index, int parts) const;
  ChunkSlots AllParts(Slot whole) const;  // one part per rank

  // Makes a message of `src`, encoded when encoded; call once per range. `final`: the values are the result
  // of a final merge. `block`: for values outside of Input, the block of Input that they belong to.
  Message Pack(Slot src, TaskId ready = kNoTask, bool final = false, int block = 0);
  // The same for values that several ranks have and encode. All these ranks must pass the same pair of `whose` and
  // `which`, unique in the operation.
  Message PackShared(int whose, uint32_t which, Slot src, TaskId ready);
  // The same for a partial reduction, which stays uncoded with Problem::bounded.
  Message PackPartial(Slot src, TaskId ready, int block = 0);
  TaskId Send(int peer, uint32_t tag, const Message& message);
  // The last task that reads the raw values of a message packed and sent here: they may be overwritten afterwards.
  static TaskId ReaderOf(const Message& message, TaskId send) {
    return message.slot.space == Space::kCode ? message.reader : send;
  }

  // Receives the values of `dst`: directly, or as a code. Call Unpack afterwards. `before`: a task that
  // must finish before dst is written.
  Message RecvInto(int peer, uint32_t tag, Slot dst, TaskId before = kNoTask);
  // Receives values to be merged or forwarded: into a new Scratch or Code block.
  Message RecvTemp(int peer, uint32_t tag, Slot range, std::vector<TaskId> before = {});
  // The same for a message of PackPartial.
  Message RecvPartial(int peer, uint32_t tag, Slot range, std::vector<TaskId> before = {});
  // Writes a message's values to dst: decodes or copies them, or does nothing if dst already has them.
  TaskId Unpack(Slot dst, const Message& message, std::vector<TaskId> before = {});

  // Several messages to one peer, grouped if possible. Tags are Tag(phase, 0 ...); both ends use the same
  // phase and count. `dsts` of kScratch allocate new blocks (their block numbers are ignored).
  void SendAll(int peer, int64_t phase, std::span<const Message> messages);
  std::vector<Message> RecvAllInto(int peer, int64_t phase, std::span<const Slot> dsts);

  TaskId Copy(Slot dst, Slot src, std::vector<TaskId> deps = {});
  TaskId Merge(Slot dst, std::vector<Slot> sources, bool final, std::vector<TaskId> deps);
  Slot Scratch(Slot range) { return builder_.Scratch(range.begin, range.end); }

  // Receives a chunk from every other rank of `team` and merges all, in the order of `team`, into `dst`.
  // `own`: this rank's chunk, valid after `ready`.
  TaskId MergeFromAll(std::span<const int> team, Slot own, Slot dst, uint32_t tag,
                      TaskId ready = kNoTask);
  // All ranks, in order.
  std::vector<int> Everybody() const;

  // Sends and receives without the codec: between ranks of one host.
  TaskId SendRaw(int peer, uint32_t tag, Slot src, std::vector<TaskId> deps = {});
  TaskId RecvRaw(int peer, uint32_t tag, Slot dst, std::vector<TaskId> deps = {});

  Schedule Finish() && { return std::move(builder_).Build(); }

 private:
  bool Grouped() const { return multi_slot_ && !encoded; }
  std::vector<Slot> Cut(Slot whole, int64_t chunk_bytes) const;
  // Encodes with the seed `whose` and `which` (ScheduleBuilder::Encode). With feedback, rank `whose` adds the
  // compression error to a block of Residual.
  Message Encoded(int whose, uint32_t which, Slot code, Slot src, bool final, TaskId ready,
                  int block);

  const int64_t chunk_bytes_;
  const bool feedback_;
  const bool exact_;
  const bool codes_partial_;
  // By block and first byte of a range of Residual: the last task that wrote it.
  std::map<std::pair<int, int64_t>, TaskId> residuals_;
  const bool multi_slot_;
  ScheduleBuilder builder_;
};

// Adds one lane of a ring reduce-scatter. parts[i]: this rank's contribution to part i, or an empty slot if the part
// has no such chunk. `result`: where part `rank` is stored. `tag`: the lane's tag at phase 0. Each rank sends all parts
// except one.
struct RingReduced {
  std::vector<TaskId> readers;   // by part: the last task that reads it
  TaskId merged = kNoTask;       // the result
};
RingReduced RingReduceScatter(Flow& flow, const std::vector<Slot>& parts, Slot result, uint32_t tag);

// Adds one lane of a ring all-gather. places[i]: where part i is stored; may be empty. `own`: this rank's packed part.
// `before`, if not empty: by part, a task that must finish before places[i] is written.
void RingAllgather(Flow& flow, const std::vector<Slot>& places, Message own,
                   std::span<const TaskId> before, uint32_t tag);

// Chunk `lane` of every part; an empty slot if there is none.
std::vector<Slot> LaneOf(const ChunkSlots& parts, size_t lane);

// Size of block i of the v-variants, or of any block of a uniform collective.
inline int64_t BlockBytes(const Problem& problem, int block) {
  return problem.counts.empty() ? problem.block_bytes : problem.counts[block];
}

// The problem for an algorithm that sends partial sums, some of them single operands: uncoded if `bounded`.
Problem OfPartialSums(const Problem& problem);

// One rank: the result is the operand.
Schedule CopyOnly(const Problem& problem);

}  // namespace jaxccomp
