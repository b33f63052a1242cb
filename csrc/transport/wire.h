// The way to every process of the world: picks the transport by process.
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

// Of a message that Wire::Notify has sent.
inline std::string_view TextOf(std::span<const std::byte> payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

class Wire {
 public:
  Wire(int process, std::unique_ptr<Transport> local)
      : process_(process), local_(std::move(local)) {}

  // As a transport's; nothing where no payload is announced.
  void Discard(Announced announced) {
    if (announced.process >= 0) To(announced.process)->Discard(announced);
  }

  void SetRemote(std::unique_ptr<Transport> remote) { remote_ = std::move(remote); }
  bool HasRemote() const { return remote_ != nullptr; }
  // What leads to other processes; null when nothing does.
  Transport* remote() const { return remote_.get(); }
  int process() const { return process_; }

  // Null when nothing leads to that process.
  Transport* To(int process) const {
    return process == process_ ? local_.get() : remote_.get();
  }
  // Sends what nobody waits for. False when no transport leads there.
  bool Notify(int process, Header header, std::string payload = {});
  // Whether messages between this process's endpoints wait for a poll.
  bool HasLocalMessages() const { return local_->NeedsPolling(); }
  // Whether payloads are under way to or from other processes.
  bool HasRemoteTransfers() const { return remote_ != nullptr && remote_->HasTransfers(); }
  // As a transport's.
  void Keep(int process, int64_t bytes) {
    if (remote_ != nullptr) remote_->Keep(process, bytes);
  }
  void Release(int process, int64_t bytes) {
    if (remote_ != nullptr) remote_->Release(process, bytes);
  }
  void Settle() {
    if (remote_ != nullptr) remote_->Settle();
  }
  int64_t EarlyBytes() const { return remote_ != nullptr ? remote_->EarlyBytes() : 0; }
  // Leaves every transport; whoever waits for one is told. Nothing is sent afterwards.
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
