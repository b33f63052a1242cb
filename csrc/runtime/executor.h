// Runs schedules: starts each task when what it depends on is done.
//
// Sends, receives and small computations start under the engine's lock; larger computations
// (copy, merge, encode, decode) are queued for whatever thread drives the engine and run
// without the lock, so that several chunks are coded while others are on the wire. Those on values in
// a device's memory are started there, any number of them, and completed by polling the device
// (executor_device.cc), and may borrow what they read from other ranks (executor_loans.cc), or have it
// sent and received where it lies (executor_direct.cc).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "runtime/direct_messages.h"
#include "runtime/memory.h"
#include "runtime/operation.h"
#include "runtime/stats.h"
#include "runtime/trace.h"
#include "runtime/wire.h"

namespace jaxccomp {

class Executor final : private Borrower {
 public:
  // Told, with the lock held, when an operation is over (all its tasks done, or failed and
  // nothing of it in flight) and when one fails first.
  class Listener {
   public:
    virtual void OnOver(Operation* op) = 0;
    virtual void OnFailed(Operation* op) = 0;
    // The sizes that its plan waits for are here.
    virtual void OnSizes(Operation* op) = 0;
    // More large computations wait than one thread can run.
    virtual void OnBacklog() = 0;
    // A message that was lent cannot be sent after all.
    virtual void OnLoanFailed(const Header& header, const Status& why) = 0;

   protected:
    ~Listener() = default;
  };

  Executor(Wire* wire, Listener* listener, Stats* stats)
      : wire_(wire),
        listener_(listener),
        stats_(stats),
        loans_(wire->process(), &arenas_),
        direct_(wire->process(), &arenas_) {
    wire_->SetBorrower(this);
  }

  // All members need the engine's lock.
  void Begin(Operation* op);
  // A message of `op` has come.
  void Arrived(Operation* op, const Header& header, std::span<const std::byte> payload,
               Announced announced);
  void TransferDone(Operation* op, TaskId task, Status status);
  // What the device did for the operation as a whole.
  void WholeDone(Operation* op, Status status);
  void Fail(Operation* op, Status status);
  // Has what is under way into the memory of an operation that has failed end. Where MPI may write there all
  // the same, all traffic with other processes ends.
  void WithdrawReceives(Operation* op);

  // Starts what is ready; runs at most one large computation, giving up `lock` meanwhile. True
  // when anything was done.
  bool Run(std::unique_lock<std::mutex>& lock);
  // A new operation's tensors lie on its call's device: joins the caller's stream.
  Status Enter(Operation* op);
  // Completes what devices are done with; true when anything happened.
  bool PollDevices();
  // Whether a caller's stream stands, or will, in front of a call.
  bool IsEntered(const Device* device) const;
  // Whether only PollDevices can tell that something has ended.
  bool AwaitsDevices() const;
  // Waits for what is under way on devices, for `patience` at most, at the end of the program. False
  // when some still goes on.
  bool DrainDevices(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience);
  // Gives back what is kept of their memory; of a device that still goes on, nothing.
  void ForgetDevices();
  // A ticket has come, which is a payload that can be pulled here alone, with that header.
  Result<Announced> AcceptLoan(const Header& header, std::span<const std::byte> payload);
  const Header& HeaderOf(Announced loan) const;
  // A borrower has sent it back.
  void LoanReturned(const Header& header);
  Loans& loans() { return loans_; }
  DirectMessages& direct() { return direct_; }
  Trace& trace() { return trace_; }
  bool HasComputations() const { return !heavy_.empty(); }
  bool HasWork() const { return !ready_.empty() || !heavy_.empty() || !returns_.empty(); }

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
  // Of a rank to itself: a copy waits for the receive, which may follow in the program.
  void SendCopy(Operation* op, TaskId task, Header header, const std::vector<Piece>& pieces);
  void StartReceive(Operation* op, TaskId task, Arrival& arrival);
  void TaskDone(Operation* op, TaskId task);
  void Release(Operation* op, Operation::Block* block, BufferPool* pool);
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
  // Whether a task that touches a scratch block needs memory for it: not where it stays lent.
  bool NeedsScratch(const Operation& op, const PlannedTask& task, int32_t block) const;
  // Of memory in several pieces a transport to another process makes a copy.
  int64_t StagedBytes(const Operation& op, const PlannedTask& task) const;
  // Takes it.
  Status Prepare(Operation* op, TaskId task, int64_t arriving_bytes);
  // What has come early is counted too, whatever operation it is for.
  void RecordPeak(Operation* op);
  bool Provide(Operation* op, Operation::Block* block, BufferPool* pool, int64_t bytes);
  BufferPool* ScratchPool(Operation* op) {
    return op->device != nullptr ? &op->device->values : &pool_;
  }
  BufferPool* CodePool(Operation* op) { return op->device != nullptr ? &op->device->codes : &pool_; }
  std::vector<Piece> PiecesOf(const Operation& op, PartRange range) const;

  // executor_device.cc. Whether a task must wait until the caller's stream has come to the call.
  bool AwaitsCaller(const Operation& op, const PlannedTask& task) const;
  void StartOnDevice(Operation* op, TaskId task);
  Status EndOnDevice(Operation* op, const PlannedTask& task, Status status);
  void CountStarted(Operation* op);
  void CallerReady(Operation* op);
  void LeaveCall(Operation* op);
  // False while there is, or has just been started, work that the operation's end waits for.
  bool IsSettled(Operation* op);

  // How a code may lie in shared memory so that all who get it are given it from there: not at all, in
  // pieces (all of them borrow it), or as it travels.
  enum class Lies { kNowhere, kInPieces, kInOne };

  // executor_loans.cc. Whether that member borrows that code.
  bool LendsTo(const Operation& op, int32_t code, int32_t peer) const;
  // Takes shared memory for what the task encodes, where all who get it can be given it from there.
  bool ProvideShared(Operation* op, const PlannedTask& task);
  void SendLoan(Operation* op, TaskId task, Header header);
  void TakeBack(uint64_t number, int borrower, uint32_t why);
  struct Resend;
  void GoOn(Resend* again, Status status);
  // Sends it back where the operation cannot borrow at all.
  bool RefusesLoan(const Operation& op, Announced loan);
  void StartBorrow(Operation* op, TaskId task, Announced loan);
  // Gives the code, whose pieces are a lender's, memory of one's own, and says what to copy there. No
  // block: there is no room.
  std::vector<Device::CopyRun> CopyToShare(Operation* op, SharedCode* code, const std::byte* memory,
                                           Lies lies);
  struct Fetch;
  void EndFetch(const Fetch& fetch, Status status);
  void DropShared(Operation* op, Operation::Block* block);
  void ReturnBorrowed(Operation* op);
  void Return(uint64_t id, uint32_t why);
  void SendReturns();
  void Discard(Announced loan) override;

  // executor_direct.cc. For a code of `bytes`.
  Lies HowShared(const Operation& op, int32_t code, int64_t bytes) const;
  bool IsSentDirectly(const Operation& op, const PlannedTask& send) const;
  void Share(Operation* op, Operation::Block* block, std::unique_ptr<SharedCode> code);
  // Takes shared memory for a message that has been announced, where it can be received there.
  void ProvideDirect(Operation* op, TaskId task, Announced announced, int64_t bytes);
  // Starts what is left of an encoding, or a receive, once it is over: the copy of a payload's head.
  // False when that is nothing.
  bool StartHead(Operation* op, TaskId task);
  struct HeadCopy;
  void EndHead(HeadCopy* copy, Status status);

  Wire* const wire_;
  Listener* const listener_;
  Stats* const stats_;
  BufferPool pool_;
  Trace trace_;
  std::deque<Item> ready_;   // transfers and light computations
  std::deque<Item> heavy_;
  std::vector<std::unique_ptr<DeviceUse>> devices_;
  SharedArenas arenas_;
  Loans loans_;
  DirectMessages direct_;
  // To lenders in other processes: sent when no operation is being changed, as to send may end some.
  std::vector<std::pair<int, Header>> returns_;
};

}  // namespace jaxccomp
