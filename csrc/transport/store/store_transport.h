// Messages through a store of keys and values that somebody else keeps and all processes reach
// (jax.distributed's): for ranks that meet without MPI and then move values in another way (NCCL).
//
// Programs are compared, and rows, probes and errors exchanged; values are refused by the engine
// (CarriesValues), and whatever is too long for the store here. A message is one message: a checksum, the
// header, the payload. Nothing is announced. Threads of the mailbox's owner put messages into the store
// and fetch them, so no call here waits. StoredMessages of one source come in the order in which it sent
// them.
//
// StoredMessages are not trusted. OnPeerLost is told of a process that has sent one which cannot be, of
// process -1 where it is unknown whose it was (kDataLoss), and of -1 when the store is gone (kUnavailable).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "transport/store/mailbox.h"
#include "transport/transport.h"

namespace jaxccomp {

class StoreTransport final : public Transport {
 public:
  // The longest payload: rows of some thousand ranks.
  static constexpr int64_t kMostBytes = 1 << 20;

  StoreTransport(int process, int processes, std::shared_ptr<Mailbox> mailbox, Receiver* receiver)
      : process_(process), processes_(processes), mailbox_(std::move(mailbox)),
        receiver_(receiver) {}
  ~StoreTransport() override { mailbox_->Close(); }

  std::string_view name() const override { return "store"; }
  bool CarriesValues() const override { return false; }
  void Send(int process, const Header& header, std::span<const Piece> payload,
            Completion* done) override;
  // Nothing is ever announced.
  void Pull(Announced announced, std::span<const Piece> into, Completion* done) override;
  std::span<const Piece> InPlace(Announced) const override { return {}; }
  void Discard(Announced) override {}
  bool Poll() override;
  bool NeedsPolling() const override { return true; }
  void ShutdownBarrier(std::chrono::milliseconds patience) override;

 private:
  void Open(const std::string& message);

  const int process_;
  const int processes_;
  const std::shared_ptr<Mailbox> mailbox_;
  Receiver* const receiver_;
};

}  // namespace jaxccomp
