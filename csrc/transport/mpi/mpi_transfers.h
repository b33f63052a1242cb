// Transfers announced payloads by MPI (mpi_transport.h), each cut into units that fit an int count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/completion.h"
#include "common/status.h"
#include "transport/mpi/mpi_requests.h"
#include "transport/mpi/mpi_world.h"
#include "transport/transport.h"

namespace jaxccomp {

// One payload in transit, shared by its units.
struct MpiTransfer {
  int process = -1;
  bool receives = false;
  bool on_request = false;     // numbered apart from those announced at once
  uint32_t number = 0;
  int units_open = 0;
  Completion* done = nullptr;  // null: no completion to call
  Status status;
  MpiBuffer staging;           // the whole payload, where the caller's memory is in several
                               // pieces or not known yet
  std::vector<Piece> scatter;  // destination of a staged receive
  MpiBuffer kept;              // memory for the rest of a cancelled receive
  bool started = false;        // MPI has started it, so it cannot be cancelled
  int64_t early_bytes = 0;     // of a receive that began before its pull
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

  // Starts a transfer under the tag of the payload's number.
  void Start(std::shared_ptr<MpiTransfer> transfer, bool on_request, uint32_t number,
             std::byte* data, int64_t bytes);
  // Adds the requests, and handles those that are over after the test.
  void Add(MpiBatch* batch);
  void TakeCompleted();
  bool Any() const { return !units_[0].empty() || !units_[1].empty(); }
  // Whether other processes wait for a transfer: a send, or the receive of a dropped payload.
  bool OthersWait() const;
  // Ends the receive of a payload that the process will not send, with the error `why`. False: there is no such
  // receive, or MPI cannot cancel it.
  bool EndReceive(int process, uint32_t number, const Status& why);
  // As Transport::Cancel.
  CancelResult Cancel(Completion* done, const Status& why, bool force);
  // Fails all transfers. Leaks memory that MPI may still access.
  void Close(const Status& why, MpiWorld::Clock::time_point deadline);
  // As Close, but calls no MPI and leaks all memory of the transfers.
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

  void FinishUnit(MpiTransfer* transfer, Status status);
  // Leaks the requests and buffers of the transfer.
  void LeakOnPurpose(const std::shared_ptr<MpiTransfer>& transfer);
  // Redirects a receive from the caller's memory to other memory. False: MPI has begun with it.
  bool ReceiveElsewhere(const std::shared_ptr<MpiTransfer>& transfer);
  // True: the unit has not been received and will not be.
  bool CancelReceive(Unit* unit);

  MpiWorld& world_;
  Listener& listener_;
  // Sends, then receives. Apart, since many sends may wait for their receivers.
  std::vector<Unit> units_[2];
  size_t next_test_[2] = {0, 0};
};

}  // namespace jaxccomp
