// Runs schedules: starts each task when its dependencies are done.
//
// Sends, receives and light computations start under the engine's lock. Heavier computations (copy, merge, encode,
// decode) are queued, and run without the lock on the thread that makes progress (a polling caller or the progress
// thread), so several chunks are encoded while others are being sent. Large computations run on threads of their own
// (engine/coder_threads.h), because the thread that makes progress also polls transports, answers probes and checks
// deadlines. The LibraryPath starts the tasks of a library of collectives.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "execution/library_path.h"
#include "execution/operation.h"
#include "execution/stats.h"
#include "execution/task_memory.h"
#include "execution/trace.h"
#include "transport/transport_router.h"

namespace jaxccomp {

// All members need the engine's lock.
class Executor final {
 public:
  class Listener {
   public:
    // The operation is over: all tasks are done, or it has failed, and no transfer or computation uses its memory.
    virtual void OnOver(Operation* op) = 0;
    // The operation has failed. Called before OnOver.
    virtual void OnFailed(Operation* op) = 0;
    // Computations wait: a `large` one, which needs a thread of its own, or more than one that is not large.
    virtual void OnBacklog(bool large) = 0;

   protected:
    ~Listener() = default;
  };

  Executor(TransportRouter* router, Listener* listener, Stats* stats)
      : router_(router), listener_(listener), stats_(stats), memory_(router) {}
  // Call it before the first operation that a library of collectives runs.
  void SetLibraryPath(LibraryPath* path) { library_path_ = path; }

  void Begin(Operation* op);
  // Handles a message of `op`.
  void Arrived(Operation* op, const IncomingMessage& message);
  void TransferDone(Operation* op, TaskId task, Status status);
  void Fail(Operation* op, Status status);
  // Cancels the transfers of a failed operation (Transport::Cancel). A transfer that cannot be cancelled keeps the
  // operation open. Returns whether there is a transfer that only a peer can end (CancelResult::kPinned). `force` also
  // stops a library that runs the operation, together with the remote transport (Transport::Quiesce).
  bool CancelTransfers(Operation* op, bool force);

  // Starts all ready tasks, and runs at most one queued computation that is not large. `lock` is released during the
  // computation. True if anything was done.
  bool Run(std::unique_lock<std::mutex>& lock);
  // Runs a queued computation, large ones first, and starts the tasks that are then ready. Requires HasComputations.
  void RunComputation(std::unique_lock<std::mutex>& lock);
  bool HasComputations() const { return !heavy_.empty() || !large_.empty(); }
  bool HasLarge() const { return !large_.empty(); }
  // Call it if no thread for large computations can be started. Run then runs large computations, too.
  void RunLargeInline();
  bool HasWork() const { return !ready_.empty() || !heavy_.empty() || !failed_.empty(); }
  Trace& trace() { return trace_; }

 private:
  struct Item {
    Operation* op;
    TaskId task;
    Transport::Reader read = {};   // for a receive whose payload is read in place
    Announced announced = {};      // the payload to read
  };
  // Values of Item::task for FillUnwritten and CopyOperands.
  static constexpr TaskId kFill = -1, kCopyOperands = -2;
  // Computations up to this size run under the lock.
  static constexpr int64_t kLightBytes = 8 << 10;
  // Computations above this size are large (OnBacklog). The limit is a few hundred microseconds, because a polling
  // caller is a thread of XLA.
  static constexpr int64_t kLargeBytes = 512 << 10;

  bool StartReady();
  void MakeReady(Operation* op, TaskId task);
  // The order of queued items. A send (which gathers its pieces) goes first, because other ranks wait for it.
  // Computations run lane by lane: so the first sends need not wait for the computations of all lanes, and a computation
  // finds the results of the one before it in the cache.
  static std::pair<bool, uint64_t> Turn(const Item& item);
  static void Insert(Item item, std::deque<Item>* queue);   // in the order of turns, behind equal ones
  // Queues a computation on `bytes` for a thread without the lock.
  void Queue(Item item, int64_t bytes);
  void TaskStarted(Operation* op, TaskId task) {   // for the trace
    if (!op->started.empty()) op->started[task].begin = Operation::Clock::now();
  }
  void TaskDone(Operation* op, TaskId task);
  void CheckOver(Operation* op);
  void CountSent(Operation* op, int64_t bytes, int64_t raw_bytes, int process);
  void StartTask(Operation* op, TaskId task);
  void StartSend(Operation* op, TaskId task);
  // A send to this rank itself completes at once. A copy waits for the receive, which may come later in the program.
  void SendCopy(Operation* op, TaskId task, Header header, const std::vector<Piece>& pieces);
  void StartReceive(Operation* op, TaskId task, const IncomingMessage& message);
  // Runs a queued item without the lock: a computation, a read in place, or a copy of the pieces of a message, of
  // operands, or into results.
  void RunLong(const Item& item, std::unique_lock<std::mutex>& lock);
  void CopyInPlace(const Item& item, std::unique_lock<std::mutex>& lock);
  void Pull(Operation* op, TaskId task, Announced announced, std::span<const Piece> into);
  void SendGathered(Operation* op, TaskId task, std::unique_lock<std::mutex>& lock);
  void Fill(Operation* op, std::unique_lock<std::mutex>& lock);
  void CopyThenStart(Operation* op, std::unique_lock<std::mutex>& lock);
  // Starts the tasks without dependencies.
  void StartTasks(Operation* op);
  // Record for the trace: MessageKnown the message that a task sends or has received, Ended the end of a task.
  void MessageKnown(Operation* op, TaskId task, const Header& header) {
    if (op->started.empty()) return;
    op->started[task].message = MessageNumber(header);
    op->started[task].payload_bytes = header.payload_bytes;
  }
  void Ended(Operation* op, TaskId task);
  std::vector<Piece> PiecesOf(const Operation& op, PartRange range) const;

  TransportRouter* const router_;
  Listener* const listener_;
  Stats* const stats_;
  LibraryPath* library_path_ = nullptr;
  TaskMemory memory_;
  Trace trace_;
  std::deque<Item> ready_;           // transfers and light computations
  std::deque<Item> heavy_, large_;   // the other computations, in the order of their turns
  uint64_t begun_ = 0;               // operations that have begun
  bool runs_large_inline_ = false;   // RunLargeInline was called
  std::vector<Operation*> failed_;   // failed operations whose transfers StartReady will cancel
};

}  // namespace jaxccomp
