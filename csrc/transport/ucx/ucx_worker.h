// This process's worker of UCX: its address, by which other processes reach it, and its event descriptor. Opened
// before other processes are known.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "transport/ucx/ucx_library.h"

namespace jaxccomp {

class UcxWorker {
 public:
  // `net_devices`: the interfaces that it uses and listens on, as in UCX_NET_DEVICES ("eth0"); empty: UCX's own
  // choice. `shares_memory`: send through shared memory within a host, if there is enough of it. There is one queue
  // for each receiver: a process that is killed while it writes there may stop all others of the host from reaching
  // that receiver.
  static Result<std::unique_ptr<UcxWorker>> Open(const std::string& net_devices, bool shares_memory = false);
  // Closes all connections, unless Leave was called.
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  const UcxLibrary& ucx() const { return ucx_; }
  ucx::Worker* handle() const { return worker_; }
  const std::string& address() const { return address_; }   // bytes
  // Becomes readable when there is work, once Arm has returned true.
  int descriptor() const { return descriptor_; }
  bool Arm() { return worker_ != nullptr && ucx_.worker_arm(worker_) == ucx::kOk; }
  bool Progress() { return worker_ != nullptr && ucx_.worker_progress(worker_) != 0; }
  // Stops calling UCX, which keeps all memory that it has been given.
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
