// Runs schedules: starts each task when what it depends on is done.
//
// Sends, receives and small computations start under the engine's lock; larger computations
// (copy, merge, encode, decode) are queued for whatever thread drives the engine and run
// without the lock, so that several chunks are coded while others are on the wire.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/memory.h"
#include "runtime/operation.h"
#include "runtime/stats.h"
#include "runtime/trace.h"
#include "runtime/wire.h"

namespace jaxccomp {

class Executor {
 public:
  // Told, with the lock held, when an operation is over (all its tasks done, or failed and
  // nothing of it in flight) and when one fails first.
  class Listener {
   public:
    virtual void OnOver(Operation* op) = 0;
    virtual void OnFailed(Operation* op) = 0;
    // More large computations wait than one thread can run.
    virtual void OnBacklog() = 0;

   protected:
    ~Listener() = default;
  };

  Executor(Wire* wire, Listener* listener, Stats* stats)
      : wire_(wire), listener_(listener), stats_(stats) {}

  // All members need the engine's lock.
  void Begin(Operation* op);
  // A message of `op` has come.
  void Arrived(Operation* op, const Header& header, std::span<const std::byte> payload,
               Announced announced);
  void TransferDone(Operation* op, TaskId task, Status status);
  void Fail(Operation* op, Status status);

  // Starts what is ready; runs at most one large computation, giving up `lock` meanwhile. True
  // when anything was done.
  bool Run(std::unique_lock<std::mutex>& lock);
  Trace& trace() { return trace_; }
  bool HasComputations() const { return !heavy_.empty(); }
  bool HasWork() const { return !ready_.empty() || !heavy_.empty(); }

 private:
  struct Item {
    Operation* op;
    TaskId task;
    Announced in_place;   // a receive whose payload can be read where it lies; process -1: none
  };
  static constexpr int64_t kLightBytes = 8 << 10;

  void MakeReady(Operation* op, TaskId task);
  void StartTask(Operation* op, TaskId task);
  void StartSend(Operation* op, TaskId task);
  void StartReceive(Operation* op, TaskId task, Arrival& arrival);
  void TaskDone(Operation* op, TaskId task);
  void Release(Operation* op, Operation::Block* block);
  void CheckOver(Operation* op);
  // For the record.
  void Started(Operation* op, TaskId task);
  void Ended(Operation* op, TaskId task);
  // Whether the task may take the temporary memory that it needs now; if not, it is parked.
  // `arriving_bytes`: of the message that a receive is for.
  bool Admit(Operation* op, TaskId task, int64_t arriving_bytes);
  // Goes on with parked tasks that may.
  void Unpark(Operation* op);
  bool MayHold(const Operation& op, TaskId task, int64_t needed_bytes) const;
  // Of memory in several pieces a transport to another process makes a copy.
  int64_t StagedBytes(const Operation& op, const PlannedTask& task) const;
  // Takes it.
  Status Prepare(Operation* op, TaskId task, int64_t arriving_bytes);
  bool Provide(Operation* op, Operation::Block* block, int64_t bytes);
  std::vector<Piece> PiecesOf(const Operation& op, PartRange range) const;

  Wire* const wire_;
  Listener* const listener_;
  Stats* const stats_;
  BufferPool pool_;
  Trace trace_;
  std::deque<Item> ready_;   // transfers and light computations
  std::deque<Item> heavy_;
};

}  // namespace jaxccomp
