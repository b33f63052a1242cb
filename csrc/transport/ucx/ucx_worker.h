// This process's worker of UCX: its address, by which others reach it, and the descriptor that tells of news.
// Opened before anybody else is known.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "transport/ucx/ucx_library.h"

namespace jaxccomp {

class UcxWorker {
 public:
  // `net_devices`: the interfaces that it uses and listens on, as in UCX_NET_DEVICES ("eth0"); empty: UCX's
  // own choice. `shares_memory`: whether processes of a host may send through shared memory, where there is enough.
  // There is one queue for each receiver: a process that is killed while it writes there may stop all others
  // of the host from reaching that receiver.
  static Result<std::unique_ptr<UcxWorker>> Open(const std::string& net_devices, bool shares_memory = false);
  // Ends all connections, unless it was left.
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  const UcxLibrary& ucx() const { return ucx_; }
  ucx::Worker* handle() const { return worker_; }
  const std::string& address() const { return address_; }   // bytes
  // Becomes readable when there is something to do, once Arm has returned true.
  int descriptor() const { return descriptor_; }
  bool Arm() { return worker_ != nullptr && ucx_.worker_arm(worker_) == ucx::kOk; }
  bool Progress() { return worker_ != nullptr && ucx_.worker_progress(worker_) != 0; }
  // From now on UCX is not called any more, and keeps all memory that it has been given.
  void Leave() { worker_ = nullptr, context_ = nullptr; }

 private:
  UcxWorker() : ucx_(UcxLibrary::Get()) {}
  Status Start(const std::string& net_devices, bool shares_memory);

  const UcxLibrary& ucx_;
  ucx::Context* context_ = nullptr;
  ucx::Worker* worker_ = nullptr;
  std::string address_;
  int descriptor_ = -1;
};

}  // namespace jaxccomp
