// The engine as its callers see it: each call takes the lock and passes on.

#include <algorithm>
#include <utility>

#include "common/forks.h"
#include "runtime/engine_impl.h"
#include "runtime/memory.h"

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
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  if (impl_->wire_.HasRemote()) return Status::Ok();
  Result<std::unique_ptr<Transport>> made = make(impl_.get());
  if (!made.ok()) return made.status();
  impl_->wire_.SetRemote(std::move(*made));
  return Status::Ok();
}

void Engine::SetCallsOneByOne(std::function<bool()> calls_one_by_one) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->calls_one_by_one_ = std::move(calls_one_by_one);
}

std::string Engine::RemoteName() const {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  const Transport* const remote = impl_->wire_.remote();
  return remote == nullptr ? "" : std::string(remote->name());
}
int Engine::process() const { return impl_->wire_.process(); }
int Engine::processes() const { return impl_->processes_; }

void Engine::SetDevices(const std::vector<std::pair<int64_t, int>>& devices) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->registry_.SetDevices(devices);
}

void Engine::SetHosts(std::vector<int> hosts) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  const auto own = static_cast<size_t>(process());
  const auto together =
      own < hosts.size() ? std::count(hosts.begin(), hosts.end(), hosts[own]) : 1;
  impl_->ranks_on_host_ = static_cast<int>(together);
  impl_->SetCoders(impl_->options_.coder_threads, impl_->ranks_on_host_);
  impl_->registry_.ChangePlacement(
      [&](Placement& placement) { placement.SetHosts(std::move(hosts)); });
}

void Engine::SetGpus(const std::vector<GpuOfDevice>& gpus) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->registry_.ChangePlacement([&](Placement& placement) { placement.SetGpus(gpus); });
}

Status Engine::AddCommunicator(const std::string& name, std::vector<int> processes) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  return impl_->registry_.AddCommunicator(name, std::move(processes));
}

Status Engine::FreeCommunicator(const std::string& name) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  Communicator* const comm = impl_->registry_.FindByName(name);
  return comm == nullptr ? Status::Ok() : impl_->Free(*comm);
}

void Engine::SetSystemProcesses(std::vector<SystemProcess> processes) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->peers_.SetProcesses(std::move(processes));
}

void Engine::Announce(const std::string& how) {
  if (IsForkedChild()) return;
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->Announce(how);
}

std::map<int, Peers::Gone> Engine::FindGone() {
  if (IsForkedChild()) return {};
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->LookForDead();
  return impl_->peers_.gone();
}

void Engine::SetInterruptJudge(std::function<bool()> is_held_up) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->is_held_up_ = std::move(is_held_up);
}

Status Engine::SetOption(std::string_view name, std::string_view value) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  Status status = jaxccomp::SetOption(&impl_->options_, name, value);
  if (name == "coder_threads") {
    impl_->SetCoders(impl_->options_.coder_threads, impl_->ranks_on_host_);
  }
  if (name == "device_mpi_bytes") {
    impl_->executor().direct().SetLeastBytes(impl_->options_.device_mpi_bytes);
  }
  if (name == "device_ipc_bytes") {
    impl_->executor().loans().SetLeastBytes(impl_->options_.device_ipc_bytes);
  }
  if (status.ok() && name == "retain_memory" && impl_->options_.retain_memory &&
      RetainFreedMemory() && impl_->options_.huge_pages) {
    UseHugePagesInHeap();
  }
  return status;
}

std::string Engine::OfferLoans(const std::vector<Device*>& devices) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  return impl_->executor().loans().Offer(devices, impl_->options_.device_ipc_memory_bytes);
}

std::vector<uint8_t> Engine::OpenLoans(const std::vector<std::string>& offers,
                                       std::vector<std::string>* reasons) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  return impl_->executor().loans().Open(offers, reasons);
}

void Engine::AgreeOnLoans(const std::vector<std::vector<uint8_t>>& opened) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->executor().loans().Agree(opened);
  impl_->registry_.ChangePlacement([&](Placement& placement) { placement.SetBorrowers(opened); });
}

Result<int> Engine::PrepareDirect(const std::vector<Device*>& devices) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  return impl_->executor().direct().Prepare(devices, impl_->options_.device_ipc_memory_bytes,
                                            impl_->wire_.remote());
}

Result<DirectMessages::Warmed> Engine::WarmUpDirect(const std::vector<int>& takes_part,
                                                    const std::vector<uint8_t>& partners,
                                                    double timeout_seconds) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                            std::chrono::duration<double>(timeout_seconds));
  return impl_->executor().direct().WarmUp(takes_part, partners, impl_->wire_.remote(), deadline);
}

void Engine::AgreeOnDirect(const std::vector<std::vector<uint8_t>>& works) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  DirectMessages& direct = impl_->executor().direct();
  direct.Agree(works);
  if (direct.IsUsed()) impl_->wire_.BindRemote(direct.device());
}

int64_t Engine::CountLoans() const {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  return impl_->executor().loans().lent_count();
}

std::optional<Status> Engine::Start(Site& site, Call call, std::function<void(Status)> done) {
  return impl_->Start(site, std::move(call), std::move(done));
}

void Engine::Forget(Site& site) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  site.plans.clear();
}

void Engine::CheckLaunches(std::function<std::string()> place) {
  if (impl_->checks_launches_) return;
  impl_->place_of_launch_ = std::move(place);
  impl_->checks_launches_ = true;
}

void Engine::CallbackFailed(const std::string& what) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->CallbackFailed(what);
}

Status Engine::FirstError() const {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  return impl_->first_error_;
}

Result<Engine::Place> Engine::FindPlace(Site& site, int64_t device) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  Result<Endpoint*> endpoint = impl_->registry_.FindEndpoint(site.spec, device);
  if (!endpoint.ok()) return endpoint.status();
  Communicator& comm = *(*endpoint)->communicator;
  comm.outside = true;
  Place place;
  place.communicator = comm.id;
  place.member = (*endpoint)->member;
  for (int i = 0; i < comm.size(); ++i) place.members.push_back(comm.MemberName(i));
  if (site.program != nullptr) place.program_hash = site.program->HashOf(comm);
  return place;
}

Status Engine::StatusOf(uint64_t communicator) const {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  const Communicator* comm = impl_->registry_.Find(communicator);
  return comm == nullptr ? Status::Ok() : comm->broken;
}

void Engine::Ask(uint64_t communicator) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  const Communicator* comm = impl_->registry_.Find(communicator);
  if (comm != nullptr) impl_->AskWhetherBroken(*comm);
}

void Engine::Break(uint64_t communicator, const Status& why) {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  Communicator* const comm = impl_->registry_.Find(communicator);
  if (comm != nullptr) impl_->Break(*comm, why, true);
}

double Engine::timeout_seconds() const {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  return impl_->options_.timeout_seconds;
}

void Engine::StartTrace() {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->executor().trace().Start();
}

std::vector<TraceEvent> Engine::StopTrace() {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  return impl_->executor().trace().Stop();
}

Stats Engine::GetStats() const {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  return impl_->stats_;
}

void Engine::ResetStats() {
  std::lock_guard<std::mutex> lock(impl_->mutex_);
  impl_->stats_ = {};
}

void Engine::Shutdown() { impl_->Shutdown(); }

}  // namespace jaxccomp
