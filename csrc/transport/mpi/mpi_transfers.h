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
  bool on_request = false;     // announced on request: has its own numbers and tags
  uint32_t number = 0;
  int units_open = 0;
  Completion* done = nullptr;  // null: no completion to call
  Status status;
  MpiBuffer staging;           // the whole payload, if the caller's memory is in several pieces, or not known yet
  std::vector<Piece> scatter;  // destination of a staged receive
  MpiBuffer kept;              // the new destination of a cancelled receive (ReceiveElsewhere)
  bool started = false;        // MPI has started the transfer, so it cannot be cancelled
  int64_t early_bytes = 0;     // size of a receive that was posted before its pull; 0: of other transfers
  bool awaits_pull = false;    // the pull of such a receive has not come
  int64_t sent_bytes = 0;      // size of a send; 0: a receive

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
  // Add: adds the requests to a batch. TakeCompleted: handles the requests that have completed.
  void Add(MpiBatch* batch);
  void TakeCompleted();
  bool Any() const { return !units_[0].empty() || !units_[1].empty(); }
  // Whether a transfer is open that another process may wait for: a send, or the receive of a dropped payload.
  bool OthersWait() const;
  // Ends the receive of a payload that its sender has cancelled, with the error `why`. False: there is no such receive,
  // or MPI cannot cancel it.
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
  // Redirects a receive from the caller's memory to other memory. False: MPI may still use the caller's memory.
  bool ReceiveElsewhere(const std::shared_ptr<MpiTransfer>& transfer);
  // True: the unit has not been received and will not be.
  bool CancelReceive(Unit* unit);

  MpiWorld& world_;
  Listener& listener_;
  // Index 0: sends. Index 1: receives. Separate lists, so that many waiting sends do not delay the test of receives.
  std::vector<Unit> units_[2];
  size_t next_test_[2] = {0, 0};
};

}  // namespace jaxccomp
