#include "matching/registry.h"

#include <algorithm>

#include "matching/hash.h"

namespace jaxccomp {

void Registry::SetDevices(const std::vector<std::pair<int64_t, int>>& devices) {
  for (const auto& [device, process] : devices) process_of_device_[device] = process;
}

void Registry::SetHosts(std::vector<int> hosts) {
  host_of_process_ = std::move(hosts);
  for (const auto& [id, comm] : communicators_) Place(comm.get());
}

void Registry::Place(Communicator* comm) const {
  comm->hosts.clear();
  for (const int process : comm->processes) {
    const bool known = static_cast<size_t>(process) < host_of_process_.size();
    comm->hosts.push_back(known ? host_of_process_[static_cast<size_t>(process)] : process);
  }
}

Communicator* Registry::Insert(std::unique_ptr<Communicator> communicator) {
  Communicator* const comm = communicator.get();
  Place(comm);
  for (int member = 0; member < comm->size(); ++member) {
    if (comm->processes[member] != process_) {
      comm->remote = true;
      continue;
    }
    auto endpoint = std::make_unique<Endpoint>();
    endpoint->communicator = comm;
    endpoint->member = member;
    comm->endpoints.push_back(std::move(endpoint));
  }
  if (auto revoked = unborn_.find(comm->id); revoked != unborn_.end()) {
    comm->revoked = std::move(revoked->second);
    unborn_.erase(revoked);
  }
  communicators_.emplace(comm->id, std::move(communicator));
  return comm;
}

Status Registry::AddCommunicator(const std::string& name, std::vector<int> processes) {
  for (int process : processes) {
    if (process < 0 || process >= processes_) {
      return {Code::kInvalidArgument, "communicator '" + name + "' names process " +
                                          std::to_string(process) + " of a world of " +
                                          std::to_string(processes_)};
    }
  }
  if (const auto known = id_of_name_.find(name); known != id_of_name_.end()) {
    if (communicators_[known->second]->processes == processes) return Status::Ok();
    return {Code::kInvalidArgument,
            "communicator '" + name + "' already exists with other members"};
  }
  const uint64_t id = Mix(1, name);
  if (communicators_.contains(id)) {   // call sites point to it, and messages for it may be in transit
    return {Code::kInvalidArgument,
            "communicator '" + name + "' has been freed, and its name is not used again: take another name"};
  }
  auto comm = std::make_unique<Communicator>();
  comm->id = id;
  comm->name = name;
  comm->processes = std::move(processes);
  id_of_name_[name] = comm->id;
  Insert(std::move(comm));
  return Status::Ok();
}

Communicator* Registry::FindByName(const std::string& name) {
  const auto known = id_of_name_.find(name);
  return known == id_of_name_.end() ? nullptr : Find(known->second);
}

void Registry::Free(Communicator& communicator) {
  id_of_name_.erase(communicator.name);
  communicator.freed = true;
  communicator.hosts = {};
  for (const auto& endpoint : communicator.endpoints) {
    // The counts of launches and operations stay: they show which operations have begun here and which never will.
    endpoint->launches.Forget();
    endpoint->comparisons = {};
    endpoint->compared = {};
    endpoint->recent = {};
  }
}

Communicator* Registry::Find(uint64_t id) {
  const auto found = communicators_.find(id);
  return found == communicators_.end() ? nullptr : found->second.get();
}

std::vector<Communicator*> Registry::All() const {
  std::vector<Communicator*> all;
  for (const auto& [id, comm] : communicators_) all.push_back(comm.get());
  return all;
}

Result<Communicator*> Registry::GroupOf(const OpSpec& spec, int64_t device) {
  const auto size = static_cast<size_t>(spec.group_size);
  if (size == 0 || spec.groups.size() % size != 0) {
    return Status(Code::kInvalidArgument, spec.ToString() + ": replica groups of unequal size");
  }
  for (size_t first = 0; first < spec.groups.size(); first += size) {
    const auto begin = spec.groups.begin() + static_cast<ptrdiff_t>(first);
    const auto end = begin + static_cast<ptrdiff_t>(size);
    if (std::find(begin, end, device) == end) continue;
    uint64_t id = 2;
    for (auto it = begin; it != end; ++it) id = Mix(id, static_cast<uint64_t>(*it));
    if (Communicator* known = Find(id)) return known;
    auto comm = std::make_unique<Communicator>();
    comm->id = id;
    comm->devices.assign(begin, end);
    for (int64_t member : comm->devices) {
      const auto process = process_of_device_.find(member);
      if (process == process_of_device_.end()) {
        return Status(Code::kFailedPrecondition,
                      spec.ToString() + ": device " + std::to_string(member) +
                          " is not known to the engine; call jaxccomp.init() after the backend's "
                          "devices are final");
      }
      comm->processes.push_back(process->second);
    }
    return Insert(std::move(comm));
  }
  return Status(Code::kInternal, spec.ToString() + ": device " + std::to_string(device) +
                                     " is in none of the replica groups");
}

Result<Endpoint*> Registry::FindEndpoint(const OpSpec& spec, int64_t device) {
  Communicator* comm = nullptr;
  if (spec.communicator.empty()) {
    Result<Communicator*> group = GroupOf(spec, device);
    if (!group.ok()) return group.status();
    comm = *group;
  } else {
    const auto id = id_of_name_.find(spec.communicator);
    if (id == id_of_name_.end()) {
      return Status(Code::kFailedPrecondition,
                    spec.ToString() + ": this process has no communicator '" + spec.communicator +
                        "'; make it before the program runs, on every rank, and free it after");
    }
    comm = Find(id->second);
  }
  for (const auto& endpoint : comm->endpoints) {
    if (comm->devices.empty() || comm->devices[endpoint->member] == device) return endpoint.get();
  }
  return Status(Code::kInvalidArgument,
                spec.ToString() + ": this process is not a member of '" + comm->name + "'");
}

}  // namespace jaxccomp
