// Announced payloads that MPI moves (mpi_transport.h), each cut into units that an MPI count can say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/completion.h"
#include "common/status.h"
#include "transport/mpi/mpi_world.h"
#include "transport/transport.h"

namespace jaxccomp {

// One payload under way, shared by its units.
struct MpiTransfer {
  int process = -1;
  bool receives = false;
  bool on_request = false;     // numbered apart from those sent at once
  uint32_t number = 0;
  int units_open = 0;
  Completion* done = nullptr;  // null: nobody wants to know
  Status status;
  MpiBuffer staging;           // the whole payload, where the caller's memory is in several
                               // pieces or not known yet
  std::vector<Piece> scatter;  // where a staged receive belongs
  MpiBuffer kept;              // where what has been cancelled is received
  bool started = false;        // MPI has started it, so it cannot be cancelled
  int64_t early_bytes = 0;     // of a receive that began before it was pulled
  bool awaits_pull = false;

  bool over() const { return units_open == 0 && !awaits_pull; }
};

class MpiTransfers {
 public:
  class Listener {
   public:
    virtual void OnTransferOver(MpiTransfer* transfer) = 0;

   protected:
    ~Listener() = default;
  };

  MpiTransfers(MpiWorld* world, Listener* listener) : world_(*world), listener_(*listener) {}

  // Under the tag that the payload's number maps to.
  void Start(std::shared_ptr<MpiTransfer> transfer, bool on_request, uint32_t number,
             std::byte* data, int64_t bytes);
  bool Poll();
  bool Any() const { return !units_[0].empty() || !units_[1].empty(); }
  // Sends, and receives that nobody waits for here but whose senders do.
  bool OthersWait() const;
  // The process will not send that payload: ends its receive with the error `why`. False: there is no such receive, or
  // MPI cannot cancel it.
  bool EndReceive(int process, uint32_t number, const Status& why);
  // As Transport::Cancel.
  CancelResult Cancel(Completion* done, const Status& why, bool force);
  // Ends all, and leaves to MPI what it may still touch.
  void Close(const Status& why, MpiWorld::Clock::time_point deadline);
  // The same without a call of MPI, which keeps all memory of them.
  void Abandon(const Status& why);

 private:
  static constexpr int kFirstTag = 16;   // MPI guarantees tags up to 32767 only

  struct Unit {
    MpiRequest request;
    std::shared_ptr<MpiTransfer> transfer;
    std::byte* data = nullptr;
    int bytes = 0;
    int tag = 0;
  };

  bool Poll(bool receives);
  void FinishUnit(MpiTransfer* transfer, Status status);
  // Never frees the requests and buffers of the transfer.
  void LeakOnPurpose(const std::shared_ptr<MpiTransfer>& transfer);
  // Has what was to be received into the caller's memory received into other memory. False when MPI has
  // begun with it.
  bool ReceiveElsewhere(const std::shared_ptr<MpiTransfer>& transfer);
  // True when it was not received and will not be.
  bool CancelReceive(Unit* unit);

  MpiWorld& world_;
  Listener& listener_;
  // By whether they are received: of those that are sent, many may wait for their receivers.
  std::vector<Unit> units_[2];
  size_t next_test_[2] = {0, 0};
};

}  // namespace jaxccomp
