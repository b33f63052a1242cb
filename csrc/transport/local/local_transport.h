// Transport between the endpoints (devices) of one process. One instance serves all endpoints.
//
// Send only queues a message, and Poll delivers it. A Send that delivered would recurse, because OnMessage may send.
// Small payloads are copied into the queue, and their sends complete at once. A larger payload stays in the sender's
// memory, and the receiver reads it there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "transport/transport.h"

namespace jaxccomp {

class LocalTransport final : public Transport {
 public:
  static constexpr int64_t kCopiedBytes = 16 << 10;  // largest payload that is copied into the queue

  // `process` is this process's number in the world.
  LocalTransport(int process, Receiver* receiver) : process_(process), receiver_(receiver) {}
  // Fails the open sends with kUnavailable.
  ~LocalTransport() override;

  std::string_view name() const override { return "local"; }
  void Send(int process, const Header& header, std::span<const Piece> payload,
            Completion* done) override;
  void Pull(Announced announced, std::span<const Piece> into, Completion* done) override;
  Reader StartRead(Announced announced) override;
  void Discard(Announced announced) override;
  CancelResult Cancel(int process, Completion* done, const Status& why, bool force) override;
  bool Poll() override;
  // Only while messages are queued.
  bool NeedsPolling() const override { return !queue_.empty(); }

 private:
  struct Message {
    Header header;
    std::unique_ptr<std::byte[]> payload;  // of kCopiedBytes; null when empty or announced
    Announced announced;
  };
  struct Offer {
    std::vector<Piece> pieces;
    Completion* sender;
    bool being_read = false;   // StartRead has given a reader, which uses `pieces` without the lock
  };

  std::unique_ptr<std::byte[]> TakeBuffer();

  const int process_;
  Receiver* const receiver_;
  std::deque<Message> queue_;
  std::unordered_map<uint64_t, Offer> offers_;
  uint64_t next_id_ = 1;
  std::vector<std::unique_ptr<std::byte[]>> spare_buffers_;
};

}  // namespace jaxccomp
