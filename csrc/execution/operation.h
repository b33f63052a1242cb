// One run of an operation on one endpoint.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/buffer_pool.h"
#include "common/completion.h"
#include "execution/memory_budget.h"
#include "execution/plan.h"
#include "execution/trace.h"
#include "matching/arrival.h"
#include "matching/call.h"
#include "matching/call_log.h"
#include "matching/communicator.h"
#include "transport/transport.h"

namespace jaxccomp {

struct Operation;
struct CallSite;

// The ends of the messages of a point-to-point operation (matching/point_to_point_matching.h).
struct MessageEnds {
  bool used = false;
  int destination = OpSpec::kNobody;
  uint64_t sent = 0;                // number of the sent message
  int source = OpSpec::kNobody;     // as requested, maybe kAnySource
  int64_t tag = 0;                  // of the received message, as requested, maybe kAnyTag
  uint64_t receive_signature = 0;
  bool status = false;              // the last result gives the source and the tag of the received message
  // Source, tag and number of the matched message; kNobody before the match.
  int from = OpSpec::kNobody;
  int64_t from_tag = 0;
  uint64_t number = 0;
  std::shared_ptr<const CallSite> site; // for kAnySource: the plan is made from it after the match

  bool AwaitsMessage() const { return source != OpSpec::kNobody && from == OpSpec::kNobody; }
};

// Completion of a task's transfer, or of a task of a library (LibraryPath).
class TransferDone final : public Completion {
 public:
  Operation* operation = nullptr;
  TaskId task = 0;
  BufferPool::Buffer staging;   // for a send of several pieces: the gathered copy
  int64_t staging_bytes = 0;
  bool under_way = false;       // Transport::Send or Pull was called, and has not completed
  void Done(Status status) override;
};

class Executor;

struct Operation {
  using Clock = std::chrono::steady_clock;
  // Identity, set before the operation begins.
  Executor* executor = nullptr;
  uint64_t number = 0;                 // of the operations that have begun in this process
  MatchKey key;
  Endpoint* endpoint = nullptr;
  std::shared_ptr<Launch> launch;      // null when matched by program order
  std::shared_ptr<const std::string> text;  // description, for errors
  std::shared_ptr<const Plan> plan;
  Call call;
  Header header;                       // of its messages, except for destination, tag, turn and size
  MessageEnds ends;
  bool in_program_order = false;
  bool remote = false;                 // some peer is in another process

  // Progress, which only the executor changes.
  std::vector<int32_t> open_deps;      // per task
  std::vector<uint8_t> waiting;        // per task, 1: a receive that starts when its message comes, or a send that
                                       // has not completed
  Arrivals arrivals;
  std::vector<TransferDone> transfers; // per task
  struct Block {
    BufferPool::Buffer buffer;
    int64_t capacity_bytes = 0;
    int64_t used_bytes = 0;            // encoded bytes in a code block
    int32_t uses_left = 0;
  };
  std::vector<Block> scratch, code;

  MemoryBudget budget;

  std::vector<TraceStart> started;     // per task, during a trace (trace.h)
  int64_t trace_number = 0;

  int64_t open_tasks = 0;
  int64_t in_flight = 0;               // transfers and computations that use its memory, and calls that keep it open
  bool filled = false;                 // FillUnwritten has run

  enum class Phase : uint8_t {
    kComparing,         // has not begun: its program is being compared with the other members
    kAwaitsAnySource,   // has not begun: no message for a receive from any source has come
    kRunning,           // also after a failure, while in_flight is above 0
    kOver,              // nothing uses the buffers any more
  };
  Phase phase = Phase::kRunning;
  Status status;                       // not ok: it has failed
  bool cancelled = false;              // failed(), for computations without the lock (std::atomic_ref)
  bool comparing() const { return phase == Phase::kComparing; }
  bool held() const { return phase < Phase::kRunning; }
  bool over() const { return phase == Phase::kOver; }
  bool failed() const { return !status.ok(); }

  // Progress, and answers to probes (engine/watchdog.h).
  struct Liveness {
    // last_progress includes the progress of members that have not begun the operation.
    Clock::time_point begun, last_progress, probed_at, failed_at;
    Clock::time_point first_message;   // from another rank; the epoch: none has come
    uint32_t asks = 0;                 // number of rounds of probes to all members
    // By member: asks + 1 at its last kPresent; 0: none has come.
    std::vector<uint32_t> present;
    // By member: total_bytes + 1 of its last kBehind; 0: none has come, or the member has begun the operation.
    std::vector<uint64_t> heard;
  };
  Liveness liveness;
  struct Caller {
    bool driven = false;                 // the caller polls in Engine::Start
    std::function<void(Status)> on_done; // null while the caller polls, and after the callback was called
    std::shared_ptr<CallRow> row;        // the call's row in the log, which counts the operation at its end
    CallCost cost;                       // so far; the seconds are set at the end
  };
  Caller caller;

  // Resets all state, but keeps the capacity of vectors.
  void Renew();
};

}  // namespace jaxccomp
