#include "transport/local/local_transport.h"

#include <algorithm>
#include <string>
#include <utility>

#include "transport/pieces.h"
#include "transport/announced.h"

namespace jaxccomp {

LocalTransport::~LocalTransport() {
  for (auto& [id, offer] : offers_) {
    offer.sender->Done({Code::kUnavailable, "the local transport was closed"});
  }
}

std::unique_ptr<std::byte[]> LocalTransport::TakeBuffer() {
  if (spare_buffers_.empty()) {
    return std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(kCopiedBytes));
  }
  std::unique_ptr<std::byte[]> buffer = std::move(spare_buffers_.back());
  spare_buffers_.pop_back();
  return buffer;
}

void LocalTransport::Send(int process, const Header& header, std::span<const Piece> payload,
                          Completion* done) {
  if (process != process_) {
    done->Done({Code::kInternal, "local transport of process " + std::to_string(process_) +
                                     " was asked to send to process " +
                                     std::to_string(process)});
    return;
  }
  if (TotalBytes(payload) != header.payload_bytes) {
    done->Done({Code::kInternal, "the header says " + std::to_string(header.payload_bytes) +
                                     " payload bytes, the pieces hold " +
                                     std::to_string(TotalBytes(payload))});
    return;
  }
  Message message{.header = header, .payload = nullptr, .announced = {}};
  message.header.source_process = process_;
  const bool copied = header.payload_bytes <= kCopiedBytes;
  if (!copied) {
    message.announced = {.process = process_, .id = next_id_++};
    offers_.emplace(message.announced.id, Offer{{payload.begin(), payload.end()}, done});
  } else if (header.payload_bytes > 0) {
    message.payload = TakeBuffer();
    Gather(payload, message.payload.get());
  }
  queue_.push_back(std::move(message));
  if (copied) done->Done(Status::Ok());
}

void LocalTransport::Pull(Announced announced, std::span<const Piece> into, Completion* done) {
  auto it = offers_.find(announced.id);
  if (it == offers_.end()) {
    return done->Done(CancelledError());
  }
  // The callbacks below may send and so change offers_.
  const Offer offer = std::move(it->second);
  offers_.erase(it);
  Status status;
  if (TotalBytes(offer.pieces) == TotalBytes(into)) {
    CopyPieces(offer.pieces, into);
  } else {
    status = {Code::kInternal, "pulled " + std::to_string(TotalBytes(into)) + " bytes of a " +
                                   std::to_string(TotalBytes(offer.pieces)) + "-byte payload"};
  }
  offer.sender->Done(Status::Ok());
  done->Done(std::move(status));
}

Transport::Reader LocalTransport::StartRead(Announced announced) {
  auto it = offers_.find(announced.id);
  if (it == offers_.end()) return {};
  it->second.being_read = true;
  return [from = &it->second.pieces](std::span<const Piece> into, bool streams) {
    CopyPieces(*from, into, streams);
    return true;
  };
}

void LocalTransport::Discard(Announced announced) {
  auto it = offers_.find(announced.id);
  if (it == offers_.end()) return;
  Completion* sender = it->second.sender;
  offers_.erase(it);
  sender->Done(Status::Ok());
}

CancelResult LocalTransport::Cancel(int, Completion* done, const Status& why, bool) {
  // Pull completes at once, so only sends can be cancelled.
  const auto it = std::ranges::find_if(offers_, [&](const auto& entry) { return entry.second.sender == done; });
  if (it == offers_.end()) return CancelResult::kDone;
  if (it->second.being_read) return CancelResult::kPending;
  offers_.erase(it);
  done->Done(why);
  return CancelResult::kDone;
}

bool LocalTransport::Poll() {
  // Deliver only messages that are queued now: two endpoints that answer each other must not hold the lock for ever.
  const size_t count = queue_.size();
  for (size_t i = 0; i < count && !queue_.empty(); ++i) {
    Message message = std::move(queue_.front());
    queue_.pop_front();
    const size_t payload_bytes =
        message.payload ? static_cast<size_t>(message.header.payload_bytes) : 0;
    receiver_->OnMessage(message.header, {message.payload.get(), payload_bytes},
                         message.announced);
    if (message.payload) spare_buffers_.push_back(std::move(message.payload));
  }
  return count > 0;
}

}  // namespace jaxccomp
