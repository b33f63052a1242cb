#include "engine/membership.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "engine/coder_threads.h"
#include "engine/engine_lock.h"
#include "engine/failures.h"
#include "engine/progress_thread.h"
#include "matching/registry.h"
#include "transport/transport_router.h"

namespace jaxccomp {

using Lock = std::lock_guard<std::mutex>;

int Membership::process() const { return router_.process(); }

int Membership::processes() const {
  const Lock lock(lock_.mutex);
  return registry_.processes();
}

void Membership::SetDevices(const std::vector<std::pair<int64_t, int>>& devices) {
  const Lock lock(lock_.mutex);
  registry_.SetDevices(devices);
}

void Membership::SetHosts(std::vector<int> hosts) {
  const Lock lock(lock_.mutex);
  const auto own = static_cast<size_t>(process());
  const auto together = own < hosts.size() ? std::count(hosts.begin(), hosts.end(), hosts[own]) : 1;
  coders_.SetRanksOnHost(static_cast<int>(together));
  registry_.SetHosts(std::move(hosts));
}

Status Membership::AddProcesses(const std::vector<std::string>& addresses) {
  const Lock lock(lock_.mutex);
  if (!router_.HasRemote()) return {Code::kFailedPrecondition, "no transport leads to other processes"};
  Status added = router_.remote()->AddProcesses(addresses);
  if (added.ok()) registry_.SetProcesses(registry_.processes() + static_cast<int>(addresses.size()));
  return added;
}

Status Membership::AddCommunicator(const std::string& name, std::vector<int> processes) {
  const Lock lock(lock_.mutex);
  return registry_.AddCommunicator(name, std::move(processes));
}

Status Membership::FreeCommunicator(const std::string& name) {
  const Lock lock(lock_.mutex);
  Communicator* const comm = registry_.FindByName(name);
  return comm == nullptr ? Status::Ok() : failures_.Free(*comm);
}

void Membership::SetSystemProcesses(std::vector<SystemProcess> processes) {
  const Lock lock(lock_.mutex);
  failures_.SetProcesses(std::move(processes));
}

void Membership::SetFailed(int process, const std::string& why) {
  const Lock lock(lock_.mutex);
  failures_.SetFailed(process, why);
}

std::map<int, Peers::Failure> Membership::FindFailed() {
  const Lock lock(lock_.mutex);
  failures_.LookForDead();
  progress_.OnPolledElsewhere();
  return failures_.peers().failed();
}

void Membership::LetGroupAgree() {
  const Lock lock(lock_.mutex);
  failures_.LetGroupAgree();
}

std::map<int, std::string> Membership::FindReported() {
  const Lock lock(lock_.mutex);
  return failures_.peers().reported();
}

void Membership::ForgetReports() {
  const Lock lock(lock_.mutex);
  failures_.ForgetReports();
}

void Membership::Announce(const std::string& how) {
  const Lock lock(lock_.mutex);
  failures_.Announce(how);
}

}  // namespace jaxccomp
