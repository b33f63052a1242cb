#include "engine/engine.h"

#include <algorithm>
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

Engine& Engine::Get() {
  std::lock_guard<std::mutex> lock(own_mutex);
  if (Own() == nullptr) Own() = std::make_unique<Engine>(0, 1);
  return *Own();
}

Engine* Engine::Find() {
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
  } else if (Own()->process() != process || Own()->processes() != processes) {
    return {Code::kFailedPrecondition,
            "the engine has been configured for another world; call jaxccomp.init() once, first"};
  }
  return Status::Ok();
}

Status Engine::UseRemote(const TransportFactory& make) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  if (impl_->wire_.HasRemote()) return Status::Ok();
  Result<std::unique_ptr<Transport>> made = make(&impl_->peer_messages_);
  if (!made.ok()) return made.status();
  impl_->wire_.SetRemote(std::move(*made));
  if (impl_->wire_.remote()->PollsEvery() != Transport::kNever) impl_->progress_.Ensure();
  return Status::Ok();
}

void Engine::UseLibrary(std::unique_ptr<CollectiveLibrary> library) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  impl_->library_.Use(std::move(library));
}

void Engine::SetCallsOneByOne(std::function<bool()> calls_one_by_one) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  impl_->deadlocks_.SetCallsOneByOne(std::move(calls_one_by_one));
}

std::string Engine::RemoteName() const {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  const Transport* const remote = impl_->wire_.remote();
  return remote == nullptr ? "" : std::string(remote->name());
}
int Engine::process() const { return impl_->wire_.process(); }
int Engine::processes() const {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  return impl_->registry_.processes();
}

Status Engine::AddProcesses(const std::vector<std::string>& addresses) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  if (!impl_->wire_.HasRemote()) return {Code::kFailedPrecondition, "no transport leads to other processes"};
  Status added = impl_->wire_.remote()->AddProcesses(addresses);
  if (!added.ok()) return added;
  impl_->registry_.SetProcesses(impl_->registry_.processes() + static_cast<int>(addresses.size()));
  return Status::Ok();
}

void Engine::SetGone(int process, const std::string& why) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  impl_->failures_.SetGone(process, why);
}

void Engine::SetDevices(const std::vector<std::pair<int64_t, int>>& devices) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  impl_->registry_.SetDevices(devices);
}

void Engine::SetHosts(std::vector<int> hosts) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  const auto own = static_cast<size_t>(process());
  const auto together =
      own < hosts.size() ? std::count(hosts.begin(), hosts.end(), hosts[own]) : 1;
  impl_->SetRanksOnHost(static_cast<int>(together));
  impl_->registry_.SetHosts(std::move(hosts));
}

Status Engine::AddCommunicator(const std::string& name, std::vector<int> processes) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  return impl_->registry_.AddCommunicator(name, std::move(processes));
}

Status Engine::FreeCommunicator(const std::string& name) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  Communicator* const comm = impl_->registry_.FindByName(name);
  return comm == nullptr ? Status::Ok() : impl_->failures_.Free(*comm);
}

void Engine::SetSystemProcesses(std::vector<SystemProcess> processes) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  impl_->failures_.SetProcesses(std::move(processes));
}

void Engine::Announce(const std::string& how) {
  if (IsForkedChild()) return;
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  impl_->failures_.Announce(how);
  if (impl_->failures_.announced() && impl_->wire_.HasRemote()) impl_->progress_.Ensure();
}

std::map<int, Peers::Gone> Engine::FindGone() {
  if (IsForkedChild()) return {};
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  impl_->failures_.LookForDead();
  impl_->progress_.OnPolledElsewhere();
  return impl_->failures_.peers().gone();
}

void Engine::SetInterruptJudge(std::function<bool()> is_held_up) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  impl_->watchdog_.SetInterruptJudge(std::move(is_held_up));
}

Status Engine::SetOption(std::string_view name, std::string_view value) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
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
  impl_->watchdog_.CallbackFailed(what);
}

Result<int> Engine::FindMember(CallSite& site, int64_t device) const {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  const Result<Endpoint*> endpoint = impl_->registry_.FindEndpoint(site.spec, device);
  if (!endpoint.ok()) return endpoint.status();
  return (*endpoint)->member;
}

void Engine::Break(CallSite& site, int64_t device, const Status& why) {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  const Result<Endpoint*> endpoint = impl_->registry_.FindEndpoint(site.spec, device);
  if (endpoint.ok()) impl_->failures_.Break(*(*endpoint)->communicator, why, true);
}

int64_t Engine::device_part_bytes() const {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  return impl_->options_.device_part_bytes;
}

Trace::Clock::time_point Engine::StartTrace() {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  return impl_->executor_.trace().Start();
}

std::vector<TraceEvent> Engine::StopTrace() {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  return impl_->executor_.trace().Stop();
}

Stats Engine::GetStats() const {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  return impl_->stats_;
}

CallLog::Snapshot Engine::GetCallLog() const {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  return impl_->calls_.Take();
}

void Engine::ResetStats() {
  std::lock_guard<std::mutex> lock(impl_->lock_.mutex);
  impl_->stats_ = {};
  impl_->calls_.Reset();
}

void Engine::Shutdown() { impl_->Shutdown(); }

}  // namespace jaxccomp
