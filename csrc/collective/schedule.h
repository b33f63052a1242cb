// A collective as data: a dependency graph of tasks over slots.
//
// Pure functions (algorithm.h) build schedules. A schedule can be printed, checked without a network, priced, and
// run by the executor (execution/executor.h). It does not access memory or a transport.
//
// Addresses. An operation has `Input` and `Output`, each an array of blocks (one block, or one per rank); for
// error feedback `Residual` and optionally `Carried`, with the blocks of Input; and the `Scratch` and `Code` blocks
// that the schedule requests. A block is a byte range [0, size). The tensors of a pytree are consecutive in a
// block, each at a multiple of kBlockAlign, so a range split at multiples of kBlockAlign never cuts an element.
// The runtime maps ranges to the tensors' memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jaxccomp {

inline constexpr int64_t kBlockAlign = 64;

enum class Space : uint8_t {
  kInput,    // the operands: never written
  kOutput,   // the results
  kScratch,  // temporary values, addressed like an input block
  kCode,     // encoded bytes: `block` is the code number, [begin, end) the encoded values
  kResidual,     // also results: the compression errors of this rank's encodings, in units of the operands
  kResidualIn,  // also operands: the residuals of the last call (carry.h); may share memory with Residual
};

struct Slot {
  Space space = Space::kInput;
  int32_t block = 0;
  int64_t begin = 0;   // bytes
  int64_t end = 0;
  int64_t bytes() const { return end - begin; }
  friend bool operator==(const Slot&, const Slot&) = default;
};

enum class TaskKind : uint8_t {
  kSend,    // sources[0] to `peer` under `tag`; grouped (below): all sources, concatenated
  kRecv,    // dst from `peer` under `tag`; grouped: dst is empty and the message fills the slots in
            // `sources` in order
  kCopy,    // dst = sources[0]
  kMerge,   // dst = sources[0] op sources[1] op ...; a source may be dst itself, or Code
            // (decode and reduce in one pass); `final` divides a mean
  kEncode,  // dst (Code) = encode(sources[0])
  kDecode,  // dst = decode(sources[0] (Code))
  kResidual,    // dst (Residual) = sources[0] - decode(sources[1] (Code)) + sources[2], which is dst or absent;
            // `final`: the values are a final result, and the difference is multiplied by the divisor of
            // a mean. sources[0] may be dst. Without sources: dst = 0
  // Only in plans of operations that a collectives library executes (execution/library_path.h), not in schedules:
  kNumber,      // the communicator's first member assigns the operation's issue number
  kLibrary,     // the library's collectives, one per tensor
};

inline constexpr bool IsOfLibrary(TaskKind kind) {
  return kind == TaskKind::kNumber || kind == TaskKind::kLibrary;
}

// Lanes are pipeline stages: a schedule processes several chunks of its values at a time, and the tasks of one
// chunk (the same on all ranks) are a lane. Tasks depend only on tasks of their own lane or of lower ones, and
// both ends of a message are in the same lane. The lowest unfinished lane can therefore always proceed: each
// rank may delay tasks of higher lanes while memory is short, without deadlock (execution/executor.h).

std::string_view Name(TaskKind kind);  // "send"
std::string_view Name(Space space);    // "input"

// A grouped message carries several uncoded slots (never kCode). Only with Problem::multi_slot; other
// messages have exactly one slot at either end.

using TaskId = int32_t;
inline constexpr TaskId kNoTask = -1;  // in a list of dependencies: ignored

struct Task {
  TaskKind kind;
  bool final = false;       // kMerge: the last reduction of these values; kResidual: of its result
  int32_t lane = 0;
  // kSend, kRecv: member index in the communicator, and a number that is unique per (sender, receiver)
  // in the operation. kEncode: the seed of a stochastic codec's random numbers; members that encode the
  // same values have the same seed, and so make the same code.
  int32_t peer = -1;
  uint32_t tag = 0;
  Slot dst = {};
  int32_t first_source = 0; // into Schedule::sources
  int32_t source_count = 0;
  int32_t first_dep = 0;    // into Schedule::deps: tasks that must be done before this one
  int32_t dep_count = 0;
};

struct Schedule {
  std::vector<Task> tasks;      // a valid topological order: deps point backwards
  std::vector<Slot> sources;
  std::vector<TaskId> deps;
  // Scratch block i holds values that have the addresses [scratch[i].begin, scratch[i].end) in a block of Input or
  // Output. The addresses determine their dtypes.
  std::vector<Slot> scratch;
  // Code block i encodes the value range code[i].
  std::vector<Slot> code;
  // A lane needs at most a quarter of the memory bound, not half (memory_limits.h).
  bool slim_lanes = false;
  // The number of lane series, 1 or 2. A series is the lanes i, i + lane_series, i + 2 lane_series ... Series do not
  // wait for each other, because a message that one series receives may depend on a send of the other.
  int32_t lane_series = 1;

  std::span<const Slot> SourcesOf(const Task& t) const {
    return {sources.data() + t.first_source, static_cast<size_t>(t.source_count)};
  }
  std::span<const TaskId> DepsOf(const Task& t) const {
    return {deps.data() + t.first_dep, static_cast<size_t>(t.dep_count)};
  }
  int64_t SentBytes() const;        // uncoded bytes over all kSend tasks
  int32_t LaneCount() const;
  int Peers() const;                // number of members it sends to or receives from
  std::string ToString() const;     // one line per task
  std::string ToString(TaskId id) const;
};

// Adds tasks in topological order, lane by lane. Dependencies are given explicitly.
class ScheduleBuilder {
 public:
  // Schedule::slim_lanes.
  void SlimLanes() { schedule_.slim_lanes = true; }
  // Schedule::lane_series.
  void LaneSeries(int32_t count) { schedule_.lane_series = count; }
  // The lane of tasks added from now on.
  void Lane(size_t lane) { lane_ = static_cast<int32_t>(lane); }
  TaskId Send(int peer, uint32_t tag, Slot src, std::vector<TaskId> deps = {});
  TaskId Recv(int peer, uint32_t tag, Slot dst, std::vector<TaskId> deps = {});
  TaskId SendGroup(int peer, uint32_t tag, std::vector<Slot> sources,
                   std::vector<TaskId> deps = {});
  TaskId RecvGroup(int peer, uint32_t tag, std::vector<Slot> destinations,
                   std::vector<TaskId> deps = {});
  TaskId Copy(Slot dst, Slot src, std::vector<TaskId> deps = {});
  TaskId Merge(Slot dst, std::vector<Slot> sources, bool final, std::vector<TaskId> deps = {});
  TaskId Encode(int whose, uint32_t which, Slot code, Slot src, std::vector<TaskId> deps = {});
  TaskId Decode(Slot dst, Slot code, std::vector<TaskId> deps = {});
  // `more`: adds to dst.
  TaskId Residual(Slot dst, Slot values, Slot code, bool final, bool more, std::vector<TaskId> deps);
  // New blocks for values of the addresses [begin, end). Return a Slot of the whole block.
  Slot Scratch(int64_t begin, int64_t end);
  Slot Code(int64_t begin, int64_t end);
  Schedule Build() &&;

 private:
  TaskId Add(Task task, std::span<const Slot> sources, std::span<const TaskId> deps);
  Schedule schedule_;
  int32_t lane_ = 0;
};

}  // namespace jaxccomp
