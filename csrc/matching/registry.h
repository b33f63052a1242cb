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
  // By process: a number for its host, the same on all ranks. Until told, every process has a host of its own.
  void SetHosts(std::vector<int> hosts);
  // Of the world; more come where the transport can add them.
  int processes() const { return processes_; }
  void SetProcesses(int processes) { processes_ = processes; }
  Status AddCommunicator(const std::string& name, std::vector<int> processes);
  // Forgets the name and all that its endpoints remember of programs. Communicator and endpoints
  // themselves stay, broken: call sites point to them, and members that wait for this one ask.
  void Free(Communicator& communicator);
  // Null when there is none of that name.
  Communicator* FindByName(const std::string& name);
  // The endpoint that runs `spec` on that device; makes the communicator of a replica group
  // on its first use.
  Result<Endpoint*> FindEndpoint(const OpSpec& spec, int64_t device);
  // Null when this process has not heard of it.
  Communicator* Find(uint64_t id);
  std::vector<Communicator*> All() const;
  // The communicator made under that id, later, is born broken. Ids come from the wire: beyond kMostUnborn of them none is
  // remembered, and who uses such a communicator hears from its members.
  void BreakUnborn(uint64_t id, Status why) {
    if (unborn_.size() < kMostUnborn) unborn_[id] = std::move(why);
  }
  bool IsBrokenUnborn(uint64_t id) const { return unborn_.contains(id); }

 private:
  static constexpr size_t kMostUnborn = 1 << 12;

  Communicator* Insert(std::unique_ptr<Communicator> communicator);
  void Place(Communicator* communicator) const;   // on hosts
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
