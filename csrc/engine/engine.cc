#include "engine/engine.h"

#include <utility>

#include "common/forks.h"
#include "common/pages.h"
#include "engine/engine_impl.h"

namespace jaxccomp {
namespace {

std::mutex own_mutex;
std::unique_ptr<Engine>& Own() {
  // Never destroyed: XLA's threads may outlive static destruction.
  static auto* own = new std::unique_ptr<Engine>;
  return *own;
}

}  // namespace

Engine::Engine(int process, int processes) : impl_(new Impl(process, processes)) {}
Engine::~Engine() = default;

Membership& Engine::membership() { return impl_->membership_; }
Measurements& Engine::measurements() { return impl_->measurements_; }

Engine& Engine::Get() {
  if (IsForkedChild()) {
    static auto* const of_child = new Engine(0, 1);
    return *of_child;
  }
  std::lock_guard<std::mutex> lock(own_mutex);
  if (Own() == nullptr) Own() = std::make_unique<Engine>(0, 1);
  return *Own();
}

Engine* Engine::Find() {
  if (IsForkedChild()) return nullptr;
  std::lock_guard<std::mutex> lock(own_mutex);
  return Own().get();
}

Status Engine::Configure(int process, int processes) {
  std::lock_guard<std::mutex> lock(own_mutex);
  if (processes < 1 || process < 0 || process >= processes) {
    return {Code::kInvalidArgument, "process " + std::to_string(process) + " of " +
                                        std::to_string(processes) + " does not exist"};
  }
  if (Own() == nullptr) {
    Own() = std::make_unique<Engine>(process, processes);
  } else if (Own()->membership().process() != process ||
             Own()->membership().processes() != processes) {
    return {Code::kFailedPrecondition,
            "the engine has been configured for another world; call jaxccomp.init() once, first"};
  }
  return Status::Ok();
}

Status Engine::UseRemote(const TransportFactory& make) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  if (impl_->router_.HasRemote()) return Status::Ok();
  Result<std::unique_ptr<Transport>> made = make(&impl_->peer_messages_);
  if (!made.ok()) return made.status();
  impl_->router_.SetRemote(std::move(*made));
  // Before the first operation too, this process answers probes, and drops payloads of peers whose operation has failed:
  // MPI does not end their sends otherwise.
  return impl_->StartThreads();
}

void Engine::UseLibrary(std::unique_ptr<CollectiveLibrary> library) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  impl_->library_.Use(std::move(library), impl_->router_.process(), impl_->registry_.processes());
}

void Engine::SetCallsOneByOne(std::function<bool()> calls_one_by_one) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  impl_->deadlocks_.SetCallsOneByOne(std::move(calls_one_by_one));
}

std::string Engine::RemoteName() const {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  const Transport* const remote = impl_->router_.remote();
  return remote == nullptr ? "" : std::string(remote->name());
}
void Engine::SetInterruptJudge(std::function<bool()> is_held_up) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  impl_->interrupts_.SetJudge(std::move(is_held_up));
}

void Engine::SetAbortHandler(std::function<void(const std::string&)> abort, std::chrono::milliseconds after) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  impl_->watchdog_.SetAbortHandler(std::move(abort), after);
}

Status Engine::SetOption(std::string_view name, std::string_view value) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  if (name == "flight_folder") return impl_->flight_writer_.SetFolder(std::string(value));
  Status status = jaxccomp::SetOption(&impl_->options_, name, value);
  impl_->OnOptions();
  if (status.ok() && name == "retain_memory" && impl_->options_.retain_memory &&
      RetainFreedMemory() && impl_->options_.huge_pages) {
    UseHugePagesInHeap();
  }
  return status;
}

std::optional<Status> Engine::Start(CallSite& site, Call call, const std::function<Done()>& later) {
  return impl_->Start(site, std::move(call), later);
}

void Engine::Forget(CallSite& site) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  site.plans.clear();
}

void Engine::CheckLaunches(std::function<std::string()> place) {
  impl_->CheckLaunches(std::move(place));
}

void Engine::CallbackFailed(const std::string& what) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  impl_->stranded_.CallbackFailed(what);
}

Result<int> Engine::FindMember(CallSite& site, int64_t device) const {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  const Result<Endpoint*> endpoint = impl_->registry_.FindEndpoint(site.spec, device);
  if (!endpoint.ok()) return endpoint.status();
  return (*endpoint)->member;
}

void Engine::Revoke(CallSite& site, int64_t device, const Status& why) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  const Result<Endpoint*> endpoint = impl_->registry_.FindEndpoint(site.spec, device);
  if (endpoint.ok()) impl_->failures_.Revoke(*(*endpoint)->communicator, why, Tell::kMembers);
}

int64_t Engine::device_part_bytes() const {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  return impl_->options_.device_part_bytes;
}

void Engine::Shutdown() { impl_->Shutdown(); }

}  // namespace jaxccomp
