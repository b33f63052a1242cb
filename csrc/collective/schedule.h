// A collective as data: a dependency graph of tasks over slots.
//
// Schedules are built by pure functions of rank arithmetic (algorithm.h), can be printed,
// checked against an oracle without a network, priced, and run by the executor
// (execution/executor.h). Nothing here touches memory or a transport.
//
// Addresses. An operation has `Input` and `Output`, each an array of blocks (one block, or
// one per rank), for error feedback `Residual` and maybe `Carried`, blocks like those of Input, and `Scratch`
// and `Code` blocks that the schedule asks for. A block is a byte range [0, size). Several tensors (a pytree)
// lie one after the other in a block, each starting at a multiple of kBlockAlign, so a range split at
// multiples of kBlockAlign never cuts an element. The runtime maps ranges to the tensors' memory.
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
  kCode,     // encoded bytes: `block` is the code number, [begin, end) the values it stands for
  kResidual,     // results too: the compression errors of this rank's encodings, in units of the operands
  kCarried,  // operands too: the residuals of the call before (carry.h); they may lie where Residual does
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
  kSend,    // sources[0] to `peer` under `tag`; grouped (below): all sources, one after the other
  kRecv,    // dst from `peer` under `tag`; grouped: dst is empty and the message fills the
            // slots in `sources`, one after the other
  kCopy,    // dst = sources[0]
  kMerge,   // dst = sources[0] op sources[1] op ...; a source may be dst itself, or Code
            // (decode and reduce in one pass); `final` divides a mean
  kEncode,  // dst (Code) = encode(sources[0])
  kDecode,  // dst = decode(sources[0] (Code))
  kResidual,    // dst (Residual) = sources[0] - decode(sources[1] (Code)), added to sources[2] if there is
            // one, which is dst; `final`: of values that were merged for good, whose loss counts
            // as often as a mean has divided them by. sources[0] may be dst. Without sources: dst = 0
  // In no schedule, but in plans of operations that a library of collectives does (execution/library_path.h).
  kNumber,      // gives the operation its issue number, at the communicator's first member
  kLibrary,     // the library's collectives, one for each tensor
};

inline constexpr bool IsOfLibrary(TaskKind kind) {
  return kind == TaskKind::kNumber || kind == TaskKind::kLibrary;
}

// Lanes. A schedule cuts its values into chunks and works on several at a time; what belongs to one
// chunk (the same one on all ranks) is a lane. Tasks depend on tasks of their own lane or of lower
// ones, and both ends of a message are in the same lane. So the lowest lane that is not done
// everywhere can always go on by itself: the runtime may hold back tasks of higher lanes for as long
// as memory is short, on every rank as it sees fit, and nothing deadlocks (execution/executor.h).

std::string_view Name(TaskKind kind);  // "send"
std::string_view Name(Space space);    // "input"

// Grouped messages carry several raw (never kCode) slots at once. They occur only where
// Problem::multi_slot allows them; all other messages have exactly one slot at either end.

using TaskId = int32_t;
inline constexpr TaskId kNoTask = -1;  // in a list of dependencies: ignored

struct Task {
  TaskKind kind;
  bool final = false;       // kMerge: the last reduction of these values; kResidual: what that gave
  int32_t lane = 0;
  // kSend, kRecv: member index in the communicator, and a number that is unique per (sender,
  // receiver) in the operation. kEncode: whose random numbers a stochastic codec draws, and which
  // of them; members that encode the same values name the same ones, and so make the same code.
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
  // Scratch block i holds values addressed [scratch[i].begin, scratch[i].end) of the block that
  // they belong to, so that the runtime knows their dtypes.
  std::vector<Slot> scratch;
  // Code block i encodes the value range code[i].
  std::vector<Slot> code;
  // One lane needs a quarter of what may be held at most, not half (memory_limits.h).
  bool slim_lanes = false;
  // Lanes i, i + lane_series, i + 2 lane_series ... wait only for each other: what one series waits for
  // may be what another one has yet to send. 1 or 2.
  int32_t lane_series = 1;

  std::span<const Slot> SourcesOf(const Task& t) const {
    return {sources.data() + t.first_source, static_cast<size_t>(t.source_count)};
  }
  std::span<const TaskId> DepsOf(const Task& t) const {
    return {deps.data() + t.first_dep, static_cast<size_t>(t.dep_count)};
  }
  int64_t SentBytes() const;        // uncoded bytes over all kSend tasks
  int32_t LaneCount() const;
  int Peers() const;                // members that it talks to
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
  // The lane of what is added from here on.
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
  // `more`: adds to what dst holds.
  TaskId Residual(Slot dst, Slot values, Slot code, bool final, bool more, std::vector<TaskId> deps);
  // New blocks for values addressed [begin, end); the Slot returned covers all of it.
  Slot Scratch(int64_t begin, int64_t end);
  Slot Code(int64_t begin, int64_t end);
  Schedule Build() &&;

 private:
  TaskId Add(Task task, std::span<const Slot> sources, std::span<const TaskId> deps);
  Schedule schedule_;
  int32_t lane_ = 0;
};

}  // namespace jaxccomp
