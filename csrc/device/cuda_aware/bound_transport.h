// A transport that is called with a device as the thread's current GPU, whatever thread calls: a
// CUDA-aware MPI makes its copies while it is called, and some need to be told where.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "device/device.h"
#include "transport/transport.h"

namespace jaxccomp {

class BoundTransport final : public Transport {
 public:
  BoundTransport(std::unique_ptr<Transport> inner, Device* device)
      : inner_(std::move(inner)), device_(device) {}
  ~BoundTransport() override {
    const Binding gpu(device_);
    inner_.reset();
  }

  std::string_view name() const override { return inner_->name(); }
  void Send(int process, const Header& header, std::span<const Piece> payload,
            Completion* done) override {
    const Binding gpu(device_);
    inner_->Send(process, header, payload, done);
  }
  void Pull(Announced announced, std::span<const Piece> into, Completion* done) override {
    const Binding gpu(device_);
    inner_->Pull(announced, into, done);
  }
  std::span<const Piece> InPlace(Announced announced) const override {
    return inner_->InPlace(announced);
  }
  Reader ReaderOf(Announced announced) const override { return inner_->ReaderOf(announced); }
  void Discard(Announced announced) override {
    const Binding gpu(device_);
    inner_->Discard(announced);
  }
  bool Withdraw(Completion* done) override {
    const Binding gpu(device_);
    return inner_->Withdraw(done);
  }
  void Freeze(const Status& why) override { inner_->Freeze(why); }
  bool Poll() override {
    const Binding gpu(device_);
    return inner_->Poll();
  }
  bool NeedsPolling() const override { return inner_->NeedsPolling(); }
  void Keep(int process, int64_t bytes) override { inner_->Keep(process, bytes); }
  void Release(int process, int64_t bytes) override { inner_->Release(process, bytes); }
  void Settle() override {
    const Binding gpu(device_);
    inner_->Settle();
  }
  bool HasTransfers() const override { return inner_->HasTransfers(); }
  int64_t EarlyBytes() const override { return inner_->EarlyBytes(); }
  Status CheckReachesDevices() const override { return inner_->CheckReachesDevices(); }
  bool PullsIntoDevices(Announced announced) const override {
    return inner_->PullsIntoDevices(announced);
  }
  Exchanged Exchange(int to, std::span<const Piece> sent, int from, std::span<const Piece> received,
                     std::chrono::steady_clock::time_point deadline) override {
    const Binding gpu(device_);
    return inner_->Exchange(to, sent, from, received, deadline);
  }
  void ShutdownBarrier(std::chrono::milliseconds patience) override {
    const Binding gpu(device_);
    inner_->ShutdownBarrier(patience);
  }

 private:
  std::unique_ptr<Transport> inner_;
  Device* const device_;
};

}  // namespace jaxccomp
