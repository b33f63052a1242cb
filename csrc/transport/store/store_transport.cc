#include "transport/store/store_transport.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "common/crc32c.h"
#include "transport/pieces.h"

namespace jaxccomp {
namespace {

constexpr size_t kChecksumBytes = sizeof(uint32_t);
constexpr size_t kLeastBytes = kChecksumBytes + sizeof(Header);

uint32_t ChecksumOf(const std::string& message) {
  return Crc32c(std::as_bytes(std::span(message).subspan(kChecksumBytes)));
}

// Those of a transport's own, and descriptors of device IPC, never go this way.
bool MayCome(MessageType type) {
  switch (type) {
    case MessageType::kData:
    case MessageType::kProbe:
    case MessageType::kAbort:
    case MessageType::kPresent:
    case MessageType::kBehind:
    case MessageType::kBlocked:
    case MessageType::kCheck:
    case MessageType::kGone: return true;
    default: return false;
  }
}

}  // namespace

void StoreTransport::Send(int process, const Header& header, std::span<const Piece> payload,
                          Completion* done) {
  const int64_t bytes = TotalBytes(payload);
  if (process < 0 || process >= processes_ || process == process_ ||
      bytes != header.payload_bytes) {
    return done->Done({Code::kInternal, "the store transport was asked to send " +
                                            std::to_string(bytes) + " bytes to process " +
                                            std::to_string(process)});
  }
  if (bytes > kMostBytes) {
    return done->Done({Code::kUnavailable,
                       "a message of " + std::to_string(bytes) + " bytes is too long for the store "
                       "that these processes meet over (" + std::to_string(kMostBytes) +
                       " bytes); start the program under an MPI launcher"});
  }
  if (Status lost = mailbox_->failure(); !lost.ok()) return done->Done(std::move(lost));
  Header own = header;
  own.source_process = process_;
  std::string message(kLeastBytes + static_cast<size_t>(bytes), '\0');
  std::memcpy(message.data() + kChecksumBytes, &own, sizeof(own));
  Gather(payload, reinterpret_cast<std::byte*>(message.data()) + kLeastBytes);
  const uint32_t checksum = ChecksumOf(message);
  std::memcpy(message.data(), &checksum, kChecksumBytes);
  mailbox_->Post(process, std::move(message));
  done->Done(Status::Ok());
}

void StoreTransport::Pull(Announced, std::span<const Piece>, Completion* done) {
  done->Done({Code::kInternal, "pulled a payload that is not announced"});
}

bool StoreTransport::Poll() {
  const std::vector<std::string> messages = mailbox_->Collect();
  for (const std::string& message : messages) Open(message);
  // Each time: operations that begin later cannot go on either.
  if (Status lost = mailbox_->failure(); !lost.ok()) receiver_->OnPeerLost(-1, lost);
  return !messages.empty();
}

void StoreTransport::Open(const std::string& message) {
  Header header;
  uint32_t checksum = 0;
  bool known = false, good = false;
  if (message.size() >= kLeastBytes) {
    std::memcpy(&checksum, message.data(), kChecksumBytes);
    std::memcpy(&header, message.data() + kChecksumBytes, sizeof(header));
    known = checksum == ChecksumOf(message) && header.magic == Header::kMagic &&
            header.source_process >= 0 && header.source_process < processes_ &&
            header.source_process != process_;
    good = known && MayCome(header.type) &&
           header.payload_bytes == static_cast<int64_t>(message.size() - kLeastBytes);
  }
  if (good) {
    return receiver_->OnMessage(header, std::as_bytes(std::span(message).subspan(kLeastBytes)), {});
  }
  receiver_->OnPeerLost(known ? header.source_process : -1,
                        {Code::kDataLoss, "process " + std::to_string(process_) +
                                              " found a message in the store that cannot be (" +
                                              std::to_string(message.size()) + " bytes)" +
                                              (known ? ", from process " +
                                                           std::to_string(header.source_process)
                                                     : "")});
}

void StoreTransport::ShutdownBarrier(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  mailbox_->Post(Mailbox::kParting, std::to_string(patience.count()));
  while (!mailbox_->HasParted() && mailbox_->failure().ok() &&
         std::chrono::steady_clock::now() < deadline) {
    if (!Poll()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace jaxccomp
