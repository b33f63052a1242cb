// Runs schedules: starts each task when its dependencies are done.
//
// Sends, receives and small computations start under the engine's lock. Larger computations (copy, merge, encode,
// decode) are queued for the thread that drives the engine. They run without the lock, so several chunks are encoded
// while others are being sent. Large computations run on threads of their own (engine/coder_threads.h), because the
// thread that drives the engine also polls transports, answers probes and checks deadlines. The LibraryPath starts
// the tasks of a library of collectives.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "execution/library_path.h"
#include "execution/operation.h"
#include "execution/stats.h"
#include "execution/task_memory.h"
#include "execution/trace.h"
#include "transport/wire.h"

namespace jaxccomp {

// All members need the engine's lock.
class Executor final {
 public:
  class Listener {
   public:
    // The operation is over: all tasks are done, or it has failed and nothing of it is in flight.
    virtual void OnOver(Operation* op) = 0;
    // The operation has failed. Called before OnOver.
    virtual void OnFailed(Operation* op) = 0;
    // More computations wait than one thread can run, or a `large` one, which needs a thread of its own.
    virtual void OnBacklog(bool large) = 0;

   protected:
    ~Listener() = default;
  };

  Executor(Wire* wire, Listener* listener, Stats* stats)
      : wire_(wire), listener_(listener), stats_(stats), memory_(wire) {}
  // Call it before the first operation of a plan by a library.
  void SetLibraryPath(LibraryPath* path) { library_path_ = path; }

  void Begin(Operation* op);
  // Handles a message of `op`.
  void Arrived(Operation* op, const IncomingMessage& message);
  void TransferDone(Operation* op, TaskId task, Status status);
  void Fail(Operation* op, Status status);
  // Cancels the transfers of a failed operation (Transport::Cancel). Transfers that cannot be cancelled keep the
  // operation open. Returns whether only a peer can end one of them.
  bool CancelTransfers(Operation* op, bool force);

  // Starts all ready tasks, and runs at most one computation that is not large, without `lock`. True if anything was
  // done.
  bool Run(std::unique_lock<std::mutex>& lock);
  // Runs a computation, a large one if there is any, and starts the tasks that are then ready. One must be queued.
  void RunComputation(std::unique_lock<std::mutex>& lock);
  bool HasComputations() const { return !heavy_.empty() || !large_.empty(); }
  bool HasLarge() const { return !large_.empty(); }
  // Call it if no thread for large computations can be started: Run then executes them as well.
  void RunLargeInline();
  bool HasWork() const { return !ready_.empty() || !heavy_.empty() || !failed_.empty(); }
  Trace& trace() { return trace_; }

 private:
  struct Item {
    Operation* op;
    TaskId task;
    Transport::Reader read = {};   // of a receive whose payload is read in place
    Announced announced = {};      // that payload
  };
  // Items without a task: FillUnwritten, CopyOperands.
  static constexpr TaskId kFill = -1, kCopyOperands = -2;
  static constexpr int64_t kLightBytes = 8 << 10;
  // The largest computation in a handler on XLA's thread: a few hundred microseconds.
  static constexpr int64_t kLargeBytes = 512 << 10;

  bool StartReady();
  void MakeReady(Operation* op, TaskId task);
  // Queues a computation of that many bytes.
  void Queue(Item item, int64_t bytes);
  void TaskStarted(Operation* op, TaskId task) {   // for the trace
    if (!op->started.empty()) op->started[task].begin = Operation::Clock::now();
  }
  void TaskDone(Operation* op, TaskId task);
  void CheckOver(Operation* op);
  void CountSent(Operation* op, int64_t bytes, int process);
  void StartTask(Operation* op, TaskId task);
  void StartSend(Operation* op, TaskId task);
  // A send to this rank itself: the copy waits for the receive, which may come later in the program.
  void SendCopy(Operation* op, TaskId task, Header header, const std::vector<Piece>& pieces);
  void StartReceive(Operation* op, TaskId task, const IncomingMessage& message);
  // Runs a long item without the lock: a computation, a copy from another process of the host, gathering the pieces
  // of a message, filling results, copying operands.
  void RunLong(const Item& item, std::unique_lock<std::mutex>& lock);
  void CopyInPlace(const Item& item, std::unique_lock<std::mutex>& lock);
  void Pull(Operation* op, TaskId task, Announced announced, std::span<const Piece> into);
  void SendGathered(Operation* op, TaskId task, std::unique_lock<std::mutex>& lock);
  void Fill(Operation* op, std::unique_lock<std::mutex>& lock);
  void CopyThenStart(Operation* op, std::unique_lock<std::mutex>& lock);
  // Starts the tasks without dependencies.
  void StartTasks(Operation* op);
  // For the trace: the message that a task sends or has received, and the end of a task.
  void MessageKnown(Operation* op, TaskId task, const Header& header) {
    if (!op->started.empty()) op->started[task].message = MessageNumber(header);
  }
  void Ended(Operation* op, TaskId task);
  std::vector<Piece> PiecesOf(const Operation& op, PartRange range) const;

  Wire* const wire_;
  Listener* const listener_;
  Stats* const stats_;
  LibraryPath* library_path_ = nullptr;
  TaskMemory memory_;
  Trace trace_;
  std::deque<Item> ready_;   // transfers and light computations
  std::deque<Item> heavy_, large_;   // the other computations
  bool runs_large_inline_ = false;         // RunLargeInline
  std::vector<Operation*> failed_;   // operations whose transfers StartReady cancels
};

}  // namespace jaxccomp
