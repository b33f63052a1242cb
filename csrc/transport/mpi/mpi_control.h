// Control messages of the MPI transport (mpi_transport.h): a header and, if it is small, the payload, in pooled
// buffers. Each message returns the small-message credit that is owed to its receiver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/control_channel.h"
#include "transport/mpi/mpi_requests.h"
#include "transport/mpi/mpi_world.h"
#include "transport/transport.h"

namespace jaxccomp {

class MpiControl final : public ControlChannel {
 public:
  // Above this size, copying through control messages costs more than announcing.
  static constexpr int64_t kEagerBytes = 8 << 10;
  static_assert(kAlongBytes <= kEagerBytes && kEagerBytes <= kMaxAlongBytes);
  static constexpr int kTag = 1;

  class Listener {
   public:
    // `message` has not been validated; any process may have sent it.
    virtual void OnControlMessage(const std::byte* message) = 0;

   protected:
    ~Listener() = default;
  };

  MpiControl(MpiWorld* world, Listener* listener)
      : ControlChannel(world->processes), world_(*world), listener_(*listener) {}

  // Posts the receives.
  Status Open();
  Status Send(int process, const Header& header, std::span<const Piece> payload) override;
  bool HasFailed(int process) const override { return world_.HasFailed(process); }
  void MarkFailed(int process, const Status& why) override { world_.MarkFailed(process, why); }

  bool PollReceives();
  // Adds the requests of the sends to a batch.
  void AddSends(MpiBatch* batch) { batch->AddList(&sends_, &next_test_); }
  // Frees the buffers of the sends that the batch's test found completed.
  void TakeSent();
  bool HasSends() const { return !sends_.empty(); }
  // Ends all communication. Leaks buffers that MPI may still access.
  void Close(MpiWorld::Clock::time_point deadline);
  // As Close, but calls no MPI and leaks all buffers.
  void Abandon();

 private:
  static constexpr int kRingSize = 32;   // number of posted receives
  // Maximum number of free buffers that are kept.
  static constexpr size_t kMaxSpare = 256;

  struct RingSlot {
    MpiHandle request = 0;  // 0: not posted
    MpiBuffer buffer;
  };
  struct ControlSend {
    MpiRequest request;
    MpiBuffer buffer;
    int process = -1;
  };

  Status Post(RingSlot* slot);
  MpiBuffer TakeBuffer();
  void GiveBuffer(MpiBuffer buffer);

  MpiWorld& world_;
  Listener& listener_;
  std::vector<RingSlot> ring_;
  size_t ring_head_ = 0;                 // the oldest posted receive
  bool receive_failed_ = false;          // nothing can be received any more
  std::vector<ControlSend> sends_;
  size_t next_test_ = 0;                 // MpiBatch::AddList's position in sends_
  std::vector<MpiBuffer> spare_buffers_;
};

}  // namespace jaxccomp
