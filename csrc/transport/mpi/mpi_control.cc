#include "transport/mpi/mpi_control.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "transport/pieces.h"

namespace jaxccomp {
namespace {

constexpr int64_t kControlBytes = static_cast<int64_t>(sizeof(Header)) + MpiControl::kEagerBytes;

}  // namespace

Status MpiControl::Open() {
  ring_.resize(kRingSize);
  for (RingSlot& slot : ring_) {
    slot.buffer = TakeBuffer();
    Status posted = Post(&slot);
    if (!posted.ok()) return posted;
  }
  return Status::Ok();
}

MpiBuffer MpiControl::TakeBuffer() {
  if (spare_buffers_.empty()) {
    return std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(kControlBytes));
  }
  MpiBuffer buffer = std::move(spare_buffers_.back());
  spare_buffers_.pop_back();
  return buffer;
}

void MpiControl::GiveBuffer(MpiBuffer buffer) {
  if (spare_buffers_.size() < kMaxSpare) spare_buffers_.push_back(std::move(buffer));
}

Status MpiControl::Send(int process, const Header& header, std::span<const Piece> payload) {
  ControlSend send{.request = {}, .buffer = TakeBuffer(), .process = process};
  Header* own = new (send.buffer.get()) Header(header);
  own->source_process = world_.process;
  ReturnSmallCredit(process, own);
  Gather(payload, send.buffer.get() + sizeof(Header));
  const int64_t bytes = static_cast<int64_t>(sizeof(Header)) + TotalBytes(payload);
  int error = world_.mpi->Isend(send.buffer.get(), static_cast<int>(bytes), world_.config.byte_type,
                                process, kTag, world_.config.comm, &send.request.handle);
  if (error != 0) return world_.Error("MPI_Isend", process, error);
  // MPI has usually sent or copied the message by now. Then the next message can use its buffer.
  int completed = 0;
  error = world_.mpi->Test(&send.request.handle, &completed);
  if (error != 0) {
    static_cast<void>(send.buffer.release());   // leaked on purpose: MPI may still read it
    return world_.Error("MPI_Test (send)", process, error);
  }
  if (completed != 0) {
    GiveBuffer(std::move(send.buffer));
  } else {
    sends_.push_back(std::move(send));
  }
  return Status::Ok();
}

Status MpiControl::Post(RingSlot* slot) {
  slot->request = 0;
  const int error = world_.mpi->Irecv(slot->buffer.get(), static_cast<int>(kControlBytes),
                                      world_.config.byte_type, world_.mpi->any_source(), kTag,
                                      world_.config.comm, &slot->request);
  if (error == 0) return Status::Ok();
  slot->request = 0;
  return world_.Error("MPI_Irecv", -1, error);
}

bool MpiControl::PollReceives() {
  bool any = false;
  // Receive at most kRingSize messages, so that a flood of messages does not hold the lock.
  for (int i = 0; i < kRingSize && !receive_failed_; ++i) {
    RingSlot& slot = ring_[ring_head_];
    int completed = 0;
    const int error = world_.mpi->Test(&slot.request, &completed);
    Status status;
    if (error != 0) {
      slot.request = 0;
      status = world_.Error("MPI_Test (receive)", -1, error);
    } else if (completed == 0) {
      break;
    } else {
      any = true;
      // Deliver the message before the receive is posted again: operations wait for the message, and the other receives
      // of the ring are posted.
      slot.request = 0;
      ring_head_ = (ring_head_ + 1) % ring_.size();
      listener_.OnControlMessage(slot.buffer.get());
      if (ring_.empty()) return true;   // the handler has frozen the transport
      status = Post(&slot);
    }
    if (!status.ok()) {
      // This process can receive from no other process any more.
      receive_failed_ = true;
      any = true;
      for (int p = 0; p < world_.processes; ++p) world_.MarkFailed(p, status);
    }
  }
  return any;
}

void MpiControl::TakeSent() {
  TakeCompleted(&sends_, [&](ControlSend finished) {
    const int error = finished.request.error;
    if (error == 0) return GiveBuffer(std::move(finished.buffer));
    static_cast<void>(finished.buffer.release());   // leaked on purpose: MPI may still read it
    world_.MarkFailed(finished.process, world_.Error("MPI_Testsome (send)", finished.process, error));
  });
}

void MpiControl::Close(MpiWorld::Clock::time_point deadline) {
  const auto leave = [](MpiBuffer* buffer) { static_cast<void>(buffer->release()); };
  for (RingSlot& slot : ring_) {
    // MPI may still use the buffer of a receive that has failed, or that cannot be ended.
    if (slot.request == 0 || !world_.EndReceive(&slot.request, deadline)) leave(&slot.buffer);
  }
  if (!world_.mpi->Finalized()) {
    for (ControlSend& send : sends_) {
      if (send.request.over) continue;
      static_cast<void>(world_.mpi->RequestFree(&send.request.handle));
      leave(&send.buffer);
    }
  }
  ring_.clear();
  sends_.clear();
}

void MpiControl::Abandon() {
  for (RingSlot& slot : ring_) static_cast<void>(slot.buffer.release());
  for (ControlSend& send : sends_) static_cast<void>(send.buffer.release());
  ring_.clear();
  sends_.clear();
}

}  // namespace jaxccomp
