#include "matching/placement.h"

#include <cstddef>

#include "matching/communicator.h"

namespace jaxccomp {

void Placement::SetGpus(const std::vector<GpuOfDevice>& gpus) {
  gpus_of_process_.clear();
  for (const GpuOfDevice& each : gpus) gpus_of_process_[each.process][each.device] = each.gpu;
}

void Placement::Place(Communicator* comm) const {
  comm->hosts.clear();
  comm->gpus.clear();
  for (int member = 0; member < comm->size(); ++member) {
    const auto process = static_cast<size_t>(comm->processes[member]);
    comm->hosts.push_back(process < host_of_process_.size() ? host_of_process_[process]
                                                            : comm->processes[member]);
    comm->gpus.push_back(GpuOf(*comm, member).value_or(-1 - member));
  }
  comm->gpus_share_memory = GpusShareMemory(*comm);
}

std::optional<int> Placement::GpuOf(const Communicator& comm, int member) const {
  const auto process = gpus_of_process_.find(comm.processes[member]);
  if (process == gpus_of_process_.end()) return std::nullopt;
  const std::map<int64_t, int>& gpus = process->second;
  if (comm.devices.empty()) {
    if (gpus.size() != 1) return std::nullopt;
    return gpus.begin()->second;
  }
  const auto found = gpus.find(comm.devices[member]);
  if (found == gpus.end()) return std::nullopt;
  return found->second;
}

bool Placement::Imports(int process, int from) const {
  const auto row = static_cast<size_t>(process), column = static_cast<size_t>(from);
  return row < imports_from_.size() && column < imports_from_[row].size() &&
         imports_from_[row][column] != 0;
}

bool Placement::GpusShareMemory(const Communicator& comm) const {
  std::map<int, std::vector<int>> sharers;   // processes by GPU
  for (int member = 0; member < comm.size(); ++member) {
    const int process = comm.processes[member];
    std::vector<int>& others = sharers[comm.gpus[member]];
    for (int other : others) {
      if (!Imports(process, other) || !Imports(other, process)) return false;
    }
    others.push_back(process);
  }
  return true;
}

}  // namespace jaxccomp
