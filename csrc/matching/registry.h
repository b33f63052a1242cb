// The communicators of this process and its endpoints in them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/status.h"
#include "matching/call.h"
#include "matching/communicator.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class Registry {
 public:
  Registry(int process, int processes) : process_(process), processes_(processes) {}

  void SetDevices(const std::vector<std::pair<int64_t, int>>& devices);
  // By process: a number for its host, equal on all ranks. By default every process has a host of its own.
  void SetHosts(std::vector<int> hosts);
  // Processes of the world; some transports can add more.
  int processes() const { return processes_; }
  void SetProcesses(int processes) { processes_ = processes; }
  Status AddCommunicator(const std::string& name, std::vector<int> processes);
  // Removes the name, and clears the state of the endpoints about programs. The communicator and its endpoints stay,
  // because call sites point to them and waiting members still probe them.
  void Free(Communicator& communicator);
  // Null if there is none of that name.
  Communicator* FindByName(const std::string& name);
  // The endpoint that runs `spec` on that device. Creates the communicator of a replica group on its first use.
  Result<Endpoint*> FindEndpoint(const OpSpec& spec, int64_t device);
  // Null if this process does not know it.
  Communicator* Find(uint64_t id);
  std::vector<Communicator*> All() const;
  // Records that a communicator that this process has not created yet is broken. It is then broken from the start. Ids
  // come from other processes, so at most kMaxUnborn are recorded; beyond that, the members report the error.
  void BreakUnborn(uint64_t id, Status why) {
    if (unborn_.size() < kMaxUnborn) unborn_[id] = std::move(why);
  }
  bool IsRevokedUnborn(uint64_t id) const { return unborn_.contains(id); }

 private:
  static constexpr size_t kMaxUnborn = 1 << 12;

  Communicator* Insert(std::unique_ptr<Communicator> communicator);
  void Place(Communicator* communicator) const;   // sets Communicator::hosts
  Result<Communicator*> GroupOf(const OpSpec& spec, int64_t device);

  const int process_;
  int processes_;
  std::unordered_map<int64_t, int> process_of_device_;
  std::vector<int> host_of_process_;
  std::unordered_map<std::string, uint64_t> id_of_name_;
  std::unordered_map<uint64_t, std::unique_ptr<Communicator>> communicators_;
  std::unordered_map<uint64_t, Status> unborn_;
};

}  // namespace jaxccomp
