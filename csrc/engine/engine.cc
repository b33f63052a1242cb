#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "common/forks.h"
#include "common/memory.h"
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
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  if (impl_->state().wire.HasRemote()) return Status::Ok();
  Result<std::unique_ptr<Transport>> made = make(impl_->receiver());
  if (!made.ok()) return made.status();
  impl_->state().wire.SetRemote(std::move(*made));
  if (impl_->state().wire.remote()->PollsEvery() != Transport::kNever) impl_->progress().Ensure();
  return Status::Ok();
}

void Engine::UseLibrary(std::unique_ptr<CollectiveLibrary> library) {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  impl_->state().library.Use(std::move(library));
}

void Engine::SetCallsOneByOne(std::function<bool()> calls_one_by_one) {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  impl_->deadlocks().SetCallsOneByOne(std::move(calls_one_by_one));
}

std::string Engine::RemoteName() const {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  const Transport* const remote = impl_->state().wire.remote();
  return remote == nullptr ? "" : std::string(remote->name());
}
int Engine::process() const { return impl_->state().wire.process(); }
int Engine::processes() const {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  return impl_->state().processes;
}

Status Engine::AddProcesses(const std::vector<std::string>& addresses) {
  EngineState& state = impl_->state();
  std::lock_guard<std::mutex> lock(state.mutex);
  if (!state.wire.HasRemote()) return {Code::kFailedPrecondition, "no transport leads to other processes"};
  Status added = state.wire.remote()->AddProcesses(addresses);
  if (!added.ok()) return added;
  state.processes += static_cast<int>(addresses.size());
  state.registry.SetProcesses(state.processes);
  return Status::Ok();
}

void Engine::SetGone(int process, const std::string& why) {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  impl_->failures().SetGone(process, why);
}

void Engine::SetDevices(const std::vector<std::pair<int64_t, int>>& devices) {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  impl_->state().registry.SetDevices(devices);
}

void Engine::SetHosts(std::vector<int> hosts) {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  const auto own = static_cast<size_t>(process());
  const auto together =
      own < hosts.size() ? std::count(hosts.begin(), hosts.end(), hosts[own]) : 1;
  impl_->SetRanksOnHost(static_cast<int>(together));
  impl_->state().registry.SetHosts(std::move(hosts));
}

Status Engine::AddCommunicator(const std::string& name, std::vector<int> processes) {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  return impl_->state().registry.AddCommunicator(name, std::move(processes));
}

Status Engine::FreeCommunicator(const std::string& name) {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  Communicator* const comm = impl_->state().registry.FindByName(name);
  return comm == nullptr ? Status::Ok() : impl_->failures().Free(*comm);
}

void Engine::SetSystemProcesses(std::vector<SystemProcess> processes) {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  impl_->failures().SetProcesses(std::move(processes));
}

void Engine::Announce(const std::string& how) {
  if (IsForkedChild()) return;
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  impl_->failures().Announce(how);
  if (impl_->failures().announced() && impl_->state().wire.HasRemote()) impl_->progress().Ensure();
}

std::map<int, Peers::Gone> Engine::FindGone() {
  if (IsForkedChild()) return {};
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  impl_->failures().LookForDead();
  impl_->progress().OnPolledElsewhere();
  return impl_->failures().peers().gone();
}

void Engine::SetInterruptJudge(std::function<bool()> is_held_up) {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  impl_->watchdog().SetInterruptJudge(std::move(is_held_up));
}

Status Engine::SetOption(std::string_view name, std::string_view value) {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  Status status = jaxccomp::SetOption(&impl_->state().options, name, value);
  impl_->OnOptions();
  if (status.ok() && name == "retain_memory" && impl_->state().options.retain_memory &&
      RetainFreedMemory() && impl_->state().options.huge_pages) {
    UseHugePagesInHeap();
  }
  return status;
}

std::optional<Status> Engine::Start(CallSite& site, Call call, const std::function<Done()>& later) {
  return impl_->Start(site, std::move(call), later);
}

void Engine::Forget(CallSite& site) {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  site.plans.clear();
}

void Engine::CheckLaunches(std::function<std::string()> place) {
  impl_->CheckLaunches(std::move(place));
}

void Engine::CallbackFailed(const std::string& what) {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  impl_->watchdog().CallbackFailed(what);
}

Result<int> Engine::FindMember(CallSite& site, int64_t device) const {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  const Result<Endpoint*> endpoint = impl_->state().registry.FindEndpoint(site.spec, device);
  if (!endpoint.ok()) return endpoint.status();
  return (*endpoint)->member;
}

void Engine::Break(CallSite& site, int64_t device, const Status& why) {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  const Result<Endpoint*> endpoint = impl_->state().registry.FindEndpoint(site.spec, device);
  if (endpoint.ok()) impl_->failures().Break(*(*endpoint)->communicator, why, true);
}

int64_t Engine::device_part_bytes() const {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  return impl_->state().options.device_part_bytes;
}

Trace::Clock::time_point Engine::StartTrace() {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  return impl_->state().executor.trace().Start();
}

std::vector<TraceEvent> Engine::StopTrace() {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  return impl_->state().executor.trace().Stop();
}

Stats Engine::GetStats() const {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  return impl_->state().stats;
}

CallLog::Snapshot Engine::GetCallLog() const {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  return impl_->state().calls.Take();
}

void Engine::ResetStats() {
  std::lock_guard<std::mutex> lock(impl_->state().mutex);
  impl_->state().stats = {};
  impl_->state().calls.Reset();
}

void Engine::Shutdown() { impl_->Shutdown(); }

}  // namespace jaxccomp
