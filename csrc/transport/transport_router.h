// Transport router: sends messages within this process by the local transport, all others by the remote one.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "transport/transport.h"

namespace jaxccomp {

// The text of a message that TransportRouter::Notify has sent.
inline std::string_view TextOf(std::span<const std::byte> payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

class TransportRouter {
 public:
  TransportRouter(int process, std::unique_ptr<Transport> local)
      : process_(process), local_(std::move(local)) {}

  // As Transport::Discard; does nothing if no payload is announced.
  void Discard(Announced announced) {
    if (announced.process >= 0) To(announced.process)->Discard(announced);
  }

  void SetRemote(std::unique_ptr<Transport> remote) { remote_ = std::move(remote); }
  bool HasRemote() const { return remote_ != nullptr; }
  // The transport to other processes; null if there is none.
  Transport* remote() const { return remote_.get(); }
  int process() const { return process_; }

  // Null if no transport leads to that process.
  Transport* To(int process) const {
    return process == process_ ? local_.get() : remote_.get();
  }
  // Sends a message without a completion. False: no transport leads to the process.
  bool Notify(int process, Header header, std::string payload = {});
  // Whether messages within this process wait for Poll.
  bool HasLocalMessages() const { return local_->NeedsPolling(); }
  // Transport::HasTransfers of the remote transport.
  bool HasRemoteTransfers() const { return remote_ != nullptr && remote_->HasTransfers(); }
  // The remote transport's functions of these names. Messages within the process use no credit.
  void Keep(int process, int64_t bytes) {
    if (remote_ != nullptr) remote_->Keep(process, bytes);
  }
  void Release(int process, int64_t bytes) {
    if (remote_ != nullptr) remote_->Release(process, bytes);
  }
  void ReturnCredit() {
    if (remote_ != nullptr) remote_->ReturnCredit();
  }
  int64_t EarlyBytes() const { return remote_ != nullptr ? remote_->EarlyBytes() : 0; }
  // Closes all transports, after the remote one's ShutdownBarrier. Open transfers fail.
  void Close(std::chrono::milliseconds patience) {
    if (remote_ != nullptr) remote_->ShutdownBarrier(patience);
    remote_.reset();
    local_.reset();
  }
  bool Poll() {
    bool any = local_->Poll();
    if (remote_ != nullptr) any |= remote_->Poll();
    return any;
  }

 private:
  const int process_;
  std::unique_ptr<Transport> local_, remote_;
};

}  // namespace jaxccomp
