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

// The messages of a point-to-point operation (point_to_point_matching.h).
struct MessageEnds {
  bool used = false;
  int destination = OpSpec::kNobody;
  uint64_t sent = 0;                // number of the sent message
  int source = OpSpec::kNobody;     // as requested, maybe kAnySource
  int64_t tag = 0;                  // of the received message, as requested, maybe kAnyTag
  uint64_t receive_signature = 0;
  bool status = false;              // a result gives its source and tag
  int from = OpSpec::kNobody;       // of the matched message; kNobody before the match
  int64_t from_tag = 0;
  uint64_t number = 0;
  std::shared_ptr<const CallSite> site; // for kAnySource: the plan is made of it after the match

  bool AwaitsMessage() const { return source != OpSpec::kNobody && from == OpSpec::kNobody; }
};

// The transport calls it when it has finished a task's transfer.
class TransferDone final : public Completion {
 public:
  Operation* operation = nullptr;
  TaskId task = 0;
  BufferPool::Buffer staging;   // of a send in several pieces: a copy of all
  int64_t staging_bytes = 0;
  bool under_way = false;       // the transport has it
  void Done(Status status) override;
};

class Executor;

struct Operation {
  using Clock = std::chrono::steady_clock;
  // Identity, set before the operation begins.
  Executor* executor = nullptr;
  MatchKey key;
  Endpoint* endpoint = nullptr;
  std::shared_ptr<Launch> launch;      // null when matched by program order
  std::shared_ptr<const std::string> text;  // description, for errors
  std::shared_ptr<const Plan> plan;
  Call call;
  Header header;                       // of its messages, except for peer, tag and size
  MessageEnds ends;
  bool in_program_order = false;
  bool remote = false;                 // some peer is in another process

  // Progress, which only the executor changes.
  std::vector<int32_t> open_deps;      // per task
  std::vector<uint8_t> waiting;        // per task: a receive that can start when its message
                                       // comes, a send that its receiver has not taken
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
  int64_t in_flight = 0;               // pins: transfers and computations that touch its memory
  bool filled = false;                 // FillUnwritten has run

  enum class Phase : uint8_t {
    kComparing,         // has not begun: its program is being compared with the other members
    kAwaitsAnySource,   // has not begun: no message for a receive from any source has come
    kRunning,           // also after a failure, while a pin remains
    kOver,              // nothing uses the buffers any more
  };
  Phase phase = Phase::kRunning;
  Status status;                       // not ok: it has failed
  bool cancelled = false;              // it has failed; computations without the lock read it (std::atomic_ref)
  bool comparing() const { return phase == Phase::kComparing; }
  bool held() const { return phase < Phase::kRunning; }
  bool over() const { return phase == Phase::kOver; }
  bool failed() const { return !status.ok(); }

  // Progress, and answers to probes (engine/watchdog.h).
  struct Liveness {
    // Progress of members that have not begun the operation counts, too.
    Clock::time_point begun, last_progress, asked_at, failed_at;
    Clock::time_point first_message;   // from another rank; before it, the epoch
    uint32_t asks = 0;                 // rounds of probes to all members
    // By member: `asks` plus 1 at the last answer that it has begun the operation; 0: no such answer.
    std::vector<uint32_t> present;
    std::vector<uint64_t> heard;       // by member that has not begun it: its progress, from 1 on
  };
  Liveness liveness;
  // The caller, which waits for the end.
  struct Caller {
    bool driven = false;                 // it still waits in Engine::Start
    std::function<void(Status)> on_done; // null while driven, and once it has been called
    std::shared_ptr<CallRow> row;        // counts the operation when it is over
    CallCost cost;                       // so far; its seconds are known at the end
  };
  Caller caller;

  // Resets all state, but keeps the memory.
  void Renew();
};

}  // namespace jaxccomp
