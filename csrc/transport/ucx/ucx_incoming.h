// Payloads that other processes announce to the UCX transport (ucx_transport.h). The runtime copies a payload from the
// sender's memory, if this process may read that memory (cma/peer_memory.h). Other payloads come in fragments, which
// this class copies to their destination, so UCX never writes into memory of an operation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/completion.h"
#include "common/status.h"
#include "transport/announced.h"
#include "transport/cma/peer_memory.h"
#include "transport/credit.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_channel.h"

namespace jaxccomp {

class UcxIncoming {
 public:
  using Memories = std::vector<std::shared_ptr<PeerMemory>>;

  // `credit_bytes`: bytes that each process may send before this process asks for them. `memories`: by process, null if
  // this process cannot read its memory; empty: reads no process's memory.
  UcxIncoming(UcxChannel* channel, int64_t credit_bytes, Memories memories);

  // As Transport::Pull; a null `done` drops the payload.
  void Pull(Announced announced, std::span<const Piece> into, Completion* done);
  Transport::Reader StartRead(Announced announced);
  // Returns false if `done` belongs to no pull.
  bool Cancel(int process, Completion* done, const Status& why);

  // Adds the channel's new processes. Their memory is not read.
  void Grow() {
    while (std::ssize(peers_) < channel_.processes()) peers_.emplace_back(credit_bytes_);
  }

  // Handle messages of other processes. False: the message is invalid. `located`: a packed LocatedPayload, or empty.
  bool OnAnnounced(const Header& header, bool on_request, std::span<const std::byte> located);
  bool OnCancelled(int process, uint32_t number);
  bool OnFragment(int process, const UcxFragment& fragment, std::span<const std::byte> data);
  // Fails the pulls from that process. Payloads that have come completely can still be pulled.
  void MarkFailed(int process, const Status& why);

  // Whether any process's memory can be read.
  bool Reads() const {
    return std::ranges::any_of(
        peers_, [](const Peer& peer) { return peer.memory != nullptr && peer.memory->usable(); });
  }
  bool Any() const { return pulled_count_ > 0; }
  int64_t early_bytes() const { return early_bytes_; }
  // Fails all pulls, for good.
  void Close(const Status& why);

 private:
  struct Incoming : AnnouncedPayload {
    int64_t received_bytes = 0;
    bool on_credit = false;
    std::shared_ptr<std::byte[]> early{};   // the payload's memory, if its first fragment came before its pull
    Piece whole{};                // all of `early`, once the payload has come completely
    std::shared_ptr<const LocatedPayload> located{};   // null: it cannot be read in place
  };
  struct Peer {
    explicit Peer(int64_t credit_bytes) : credit(credit_bytes) {}
    std::shared_ptr<PeerMemory> memory;   // null: this process cannot read it
    AnnouncedPayloads<Incoming> incoming;
    PayloadCredit credit;         // of payloads from the peer
  };

  Peer& PeerOf(int process) { return peers_[static_cast<size_t>(process)]; }
  const Incoming* Find(Announced announced);
  void ReturnCredit(int process, int64_t bytes);
  // Delivers a pulled payload that has come completely.
  void Complete(int process, uint32_t number);
  void DropEarly(Incoming* incoming);

  UcxChannel& channel_;
  const int64_t credit_bytes_;
  std::vector<Peer> peers_;
  int64_t pulled_count_ = 0;     // wanted payloads, over all peers
  int64_t early_bytes_ = 0;
  bool closed_ = false;
};

}  // namespace jaxccomp
