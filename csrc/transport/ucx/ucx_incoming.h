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
#include "transport/cma/peer_memory.h"
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
  Transport::Reader StartRead(Announced announced) const;
  // Returns false if `done` belongs to no pull.
  bool Cancel(Completion* done, const Status& why);

  // The channel has processes that it had not. Of those it reads no memory.
  void Grow() { peers_.resize(static_cast<size_t>(channel_.processes())); }

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
  struct Incoming {
    int64_t bytes = 0;
    int64_t received_bytes = 0;
    bool wanted = false;
    bool on_credit = false;
    std::vector<Piece> into{};    // empty: discarded
    Completion* done = nullptr;
    std::shared_ptr<std::byte[]> early{};   // holds all of it, as it began to come before it was wanted
    Piece whole{};                // all of `early`, once it is here
    std::shared_ptr<const LocatedPayload> located{};   // null: it does not lie where it can be read
  };
  struct Peer {
    std::shared_ptr<PeerMemory> memory;   // null: it cannot be read
    std::unordered_map<uint32_t, Incoming> incoming;
    int64_t used_bytes = 0;       // what it has sent on credit that it has not been given back
    int64_t owed_bytes = 0;       // the part of it that needs no memory here (any more)
  };

  Peer& PeerOf(int process) { return peers_[static_cast<size_t>(process)]; }
  const Incoming* Find(Announced announced) const;
  bool UseCredit(int process, int64_t bytes);
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
