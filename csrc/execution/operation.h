// One run of one operation on one endpoint.
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

// Of an operation that is messages between two ranks: which ones (point_to_point_matching.h).
struct MessageEnds {
  bool used = false;
  int destination = OpSpec::kNobody;
  uint64_t sent = 0;                // the number of the message that it sends
  int source = OpSpec::kNobody;     // as asked for, maybe kAnySource
  int64_t tag = 0;                  // of what it receives, as asked for, maybe kAnyTag
  uint64_t receive_signature = 0;
  bool status = false;              // tells who sent it
  int from = OpSpec::kNobody;       // of the message that it takes, once there is one
  int64_t from_tag = 0;
  uint64_t number = 0;
  std::shared_ptr<const CallSite> site; // from kAnySource: what its plan is made of, then

  bool AwaitsMessage() const { return source != OpSpec::kNobody && from == OpSpec::kNobody; }
};

// Told by the transport that a task's bytes are through.
class TransferDone final : public Completion {
 public:
  Operation* operation = nullptr;
  TaskId task = 0;
  BufferPool::Buffer staging;   // of a send of several pieces of memory: all of them
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
  std::shared_ptr<const std::string> text;  // what it is, for errors
  std::shared_ptr<const Plan> plan;
  Call call;
  Header header;                       // of its messages, but for peer, tag and size
  MessageEnds ends;
  bool in_program_order = false;
  bool remote = false;                 // some peer is in another process

  // Progress, which the executor changes.
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

  std::vector<TraceStart> started;     // per task, while tasks are recorded (trace.h)
  int64_t trace_number = 0;

  int64_t open_tasks = 0;
  int64_t in_flight = 0;               // pins: transfers and computations that touch our memory
  bool filled = false;                 // FillUnwritten has run

  enum class Phase : uint8_t {
    kComparing,         // has not begun: its program is being compared with the other members'
    kAwaitsAnySource,   // has not begun: no message has come that it could take from anybody
    kRunning,           // also after a failure, while a pin remains
    kOver,              // nothing uses the buffers any more
  };
  Phase phase = Phase::kRunning;
  Status status;                       // not ok: it has failed
  bool cancelled = false;              // it has failed, for computations without the lock (std::atomic_ref)
  bool comparing() const { return phase == Phase::kComparing; }
  bool held() const { return phase < Phase::kRunning; }
  bool over() const { return phase == Phase::kOver; }
  bool failed() const { return !status.ok(); }

  // Whether it goes on, and who has answered (engine/watchdog.h).
  struct Liveness {
    // Progress is also what those do that have not come here yet.
    Clock::time_point begun, last_progress, asked_at, failed_at;
    Clock::time_point first_message;   // from another rank; the epoch as long as there is none
    uint32_t asks = 0;                 // how often all members have been asked whether they have come
    // By member: 0, or, when it last answered that it has come, one more than so many asks.
    std::vector<uint32_t> present;
    std::vector<uint64_t> heard;       // by member that has not: from 1 on, how far it has come
  };
  Liveness liveness;
  // Whom the engine tells.
  struct Caller {
    bool driven = false;                 // still waits in Engine::Start
    std::function<void(Status)> on_done; // null while driven, and once it has been called
    std::shared_ptr<CallRow> row;        // counts the operation when it is over
    CallCost cost;                       // so far; its seconds are known when it is over
  };
  Caller caller;

  // Makes it a new one, which computes in the same memory.
  void Renew();
};

}  // namespace jaxccomp
