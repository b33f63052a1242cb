// Announced payloads of the UCX transport (ucx_transport.h), sent in fragments that are copied to their place
// here, so that UCX never has memory of an operation to write into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/completion.h"
#include "common/status.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_channel.h"

namespace jaxccomp {

class UcxPayloads {
 public:
  // A fragment fits into one buffer of UCX's TCP (64 KiB), so that UCX need not put it together.
  static constexpr int64_t kFragmentBytes = 60 << 10;

  // `credit_bytes`: what may be sent to each process before it is wanted.
  UcxPayloads(UcxChannel* channel, int64_t credit_bytes);

  // The channel has processes that it had not.
  void Grow();
  void Send(int process, const Header& header, std::span<const Piece> payload, Completion* done);
  // As Transport's; a null `done` receives and drops.
  void Pull(Announced announced, std::span<const Piece> into, Completion* done);
  std::span<const Piece> InPlace(Announced announced) const;
  // True when something was under way for it.
  bool Withdraw(Completion* done, const Status& why);

  // Messages of other processes. False: that cannot be.
  bool OnAnnounced(const Header& header, bool on_request);
  bool OnWant(int process, uint32_t number);
  bool OnCredit(int process, int64_t bytes);
  bool OnFragment(int process, const UcxFragment& fragment, std::span<const std::byte> data);
  void OnFragmentSent(int process, void* owner, int64_t bytes, const Status& status);
  // Whoever waits for that process is told. What has come whole is still here.
  void Lose(int process, const Status& why);

  bool Any() const { return outgoing_count_ > 0 || pulled_count_ > 0; }
  // Whether a payload is being sent.
  bool Sends() const;
  int64_t early_bytes() const { return early_bytes_; }
  // Whoever waits for something here is told. Nothing is sent or received any more.
  void Close(const Status& why);

 private:
  // Sent in the order of their pieces.
  struct Outgoing {
    std::vector<Piece> pieces;
    int64_t bytes = 0;
    int32_t lane = 0;
    uint32_t number = 0;
    Completion* done = nullptr;
    bool started = false;
    bool on_credit = false;
    size_t piece = 0;             // where the next fragment begins,
    int64_t piece_offset = 0;
    int64_t handed_bytes = 0;     // which is after so many
    int fragments_open = 0;
    Status status;

    bool over() const {
      return fragments_open == 0 && (handed_bytes == bytes || !status.ok());
    }
  };
  struct Incoming {
    int64_t bytes = 0;
    int64_t received_bytes = 0;
    bool wanted = false;
    bool on_credit = false;
    std::vector<Piece> into{};    // empty: discarded
    Completion* done = nullptr;
    std::unique_ptr<std::byte[]> early{};   // holds all of it, as it began to come before it was wanted
    Piece whole{};                // all of `early`, once it is here
  };
  using Turn = std::pair<int32_t, uint32_t>;   // lane and number
  struct Peer {
    uint32_t next = 0;            // the number of the next one announced to it
    std::unordered_map<uint32_t, std::unique_ptr<Outgoing>> outgoing;
    std::unordered_map<uint32_t, Incoming> incoming;
    std::set<Turn> waiting;       // of those not started, the ones in turn for credit
    std::set<Turn> active;        // those started of which a part has not been handed to UCX
    int64_t open_bytes = 0;       // what UCX has not sent yet
    int64_t credit_bytes = 0;     // what may be sent to it at once
    int64_t used_bytes = 0;       // what it has sent on credit that it has not been given back
    int64_t owed_bytes = 0;       // the part of it that needs no memory here (any more)
  };

  Peer& PeerOf(int process) { return peers_[static_cast<size_t>(process)]; }
  const Incoming* Find(Announced announced) const;
  void Start(int process, Outgoing* outgoing, bool on_credit);
  // What has waited goes in turn while there is credit for it.
  void SendWaiting(int process);
  // Hands fragments to UCX, of the lowest lanes first, as long as it has not too much of them.
  void Advance(int process);
  UcxChannel::Sent SendNext(int process, Outgoing* outgoing, int64_t* bytes);
  void FinishIfOver(int process, Outgoing* outgoing);
  bool UseCredit(int process, int64_t bytes);
  void ReturnCredit(int process, int64_t bytes);
  // All of it has come.
  void Complete(int process, uint32_t number);
  void DropEarly(Incoming* incoming);

  UcxChannel& channel_;
  const int64_t credit_bytes_;
  std::vector<Peer> peers_;
  int64_t outgoing_count_ = 0;   // over all peers
  int64_t pulled_count_ = 0;     // of those announced here, the wanted ones
  int64_t early_bytes_ = 0;
  bool closed_ = false;
};

}  // namespace jaxccomp
