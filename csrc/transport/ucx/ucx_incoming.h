// Payloads that other processes announce to the UCX transport (ucx_transport.h). One that lies in memory
// which this process may read (cma/peer_memory.h) is copied from there by the runtime. The others come in
// fragments, which are copied to their place here, so that UCX never has memory of an operation to write into.
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

  // `credit_bytes`: what each process may send before it is wanted. `memories`: of the processes whose memory
  // this one may read, null for the others; empty: of none.
  UcxIncoming(UcxChannel* channel, int64_t credit_bytes, Memories memories);

  // As Transport's; a null `done` receives and drops.
  void Pull(Announced announced, std::span<const Piece> into, Completion* done);
  Transport::Reader StartRead(Announced announced);
  // Returns false if `done` belongs to no pull.
  bool Cancel(int process, Completion* done, const Status& why);

  // The channel has processes that it had not. Of those it reads no memory.
  void Grow() {
    while (std::ssize(peers_) < channel_.processes()) peers_.emplace_back(credit_bytes_);
  }

  // Messages of other processes. False: that cannot be. `located`: where the payload lies (LocatedPayload).
  bool OnAnnounced(const Header& header, bool on_request, std::span<const std::byte> located);
  bool OnCancelled(int process, uint32_t number);
  bool OnFragment(int process, const UcxFragment& fragment, std::span<const std::byte> data);
  // Whoever waits for that process is told. What has come whole is still here.
  void Lose(int process, const Status& why);

  // Whether any process's memory can be read.
  bool Reads() const {
    return std::ranges::any_of(
        peers_, [](const Peer& peer) { return peer.memory != nullptr && peer.memory->usable(); });
  }
  bool Any() const { return pulled_count_ > 0; }
  int64_t early_bytes() const { return early_bytes_; }
  // Whoever waits for something here is told. Nothing is received any more.
  void Close(const Status& why);

 private:
  struct Incoming : AnnouncedPayload {
    int64_t received_bytes = 0;
    bool on_credit = false;
    std::shared_ptr<std::byte[]> early{};   // holds all of it, as it began to come before it was wanted
    Piece whole{};                // all of `early`, once it is here
    std::shared_ptr<const LocatedPayload> located{};   // null: it does not lie where it can be read
  };
  struct Peer {
    explicit Peer(int64_t credit_bytes) : credit(credit_bytes) {}
    std::shared_ptr<PeerMemory> memory;   // null: it cannot be read
    AnnouncedPayloads<Incoming> incoming;
    PayloadCredit credit;         // of its payloads
  };

  Peer& PeerOf(int process) { return peers_[static_cast<size_t>(process)]; }
  const Incoming* Find(Announced announced);
  void ReturnCredit(int process, int64_t bytes);
  // All of it has come.
  void Complete(int process, uint32_t number);
  void DropEarly(Incoming* incoming);

  UcxChannel& channel_;
  const int64_t credit_bytes_;
  std::vector<Peer> peers_;
  int64_t pulled_count_ = 0;     // the wanted ones, over all peers
  int64_t early_bytes_ = 0;
  bool closed_ = false;
};

}  // namespace jaxccomp
