// This process's UCX worker, with its address, to which other processes connect, and its event descriptor. Opened
// before the other processes are known.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "transport/ucx/ucx_library.h"

namespace jaxccomp {

class UcxWorker {
 public:
  // `net_devices`: the interfaces that the worker uses and listens on, as in UCX_NET_DEVICES ("eth0"); empty: UCX
  // chooses. `shares_memory`: send through shared memory within a host, if there is enough. Each receiver has one queue
  // there. If a process is killed while it writes to the queue, other processes of the host may no longer reach that
  // receiver.
  static Result<std::unique_ptr<UcxWorker>> Open(const std::string& net_devices, bool shares_memory = false);
  // Closes all connections, unless Leave was called.
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  const UcxLibrary& ucx() const { return ucx_; }
  ucx::Worker* handle() const { return worker_; }
  const std::string& address() const { return address_; }   // bytes
  // Becomes readable when Progress has work, if Arm has returned true.
  int descriptor() const { return descriptor_; }
  bool Arm() { return worker_ != nullptr && ucx_.worker_arm(worker_) == ucx::kOk; }
  bool Progress() { return worker_ != nullptr && ucx_.worker_progress(worker_) != 0; }
  // Stops calling UCX, and leaks the worker and its connections.
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
