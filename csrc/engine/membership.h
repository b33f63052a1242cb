// The processes of the world, their hosts and devices, the communicators, and failed processes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "engine/peers.h"

namespace jaxccomp {

class CoderThreads;
class Failures;
class ProgressThread;
class Registry;
class TransportRouter;
struct EngineLock;

// All members take the engine's lock.
class Membership {
 public:
  Membership(EngineLock* lock, Registry* registry, TransportRouter* router, Failures* failures,
             ProgressThread* progress, CoderThreads* coders)
      : lock_(*lock), registry_(*registry), router_(*router), failures_(*failures), progress_(*progress),
        coders_(*coders) {}

  int process() const;
  int processes() const;
  // Global device ids and the process that each belongs to.
  void SetDevices(const std::vector<std::pair<int64_t, int>>& devices);
  // `hosts`: by process, a number for its host, equal on all processes. Call it before the first operation.
  void SetHosts(std::vector<int> hosts);
  // Appends processes to the world, by their addresses on the transport (Transport::AddProcesses).
  Status AddProcesses(const std::vector<std::string>& addresses);
  Status AddCommunicator(const std::string& name, std::vector<int> processes);
  // Frees the communicator. Members that wait for this one get an error when they probe it. Returns an error if an
  // operation on the communicator is open.
  Status FreeCommunicator(const std::string& name);

  // By process of the world, its pid and start time; pid 0 for processes on other hosts. While an operation waits, the
  // engine checks that they live, and so notices a process that dies without a report.
  void SetSystemProcesses(std::vector<SystemProcess> processes);
  // Marks a process as failed that ended before this one joined, or that the group has dropped.
  void SetFailed(int process, const std::string& why);
  // The group agrees on its members from now on (Failures::LetGroupAgree).
  void LetGroupAgree();
  // Returns, by process, the error with which other processes have reported it as failed since ForgetReports. Leaves
  // out processes that this one knew to have failed.
  std::map<int, std::string> FindReported();
  void ForgetReports();
  // Polls the transports, then returns the processes that have failed or died.
  std::map<int, Peers::Failure> FindFailed();
  // Reports to all other processes that this one ends because of a failure. Their operations with this process then
  // fail at once. `how`: "has ended with ValueError: no".
  void Announce(const std::string& how);

 private:
  EngineLock& lock_;
  Registry& registry_;
  TransportRouter& router_;
  Failures& failures_;
  ProgressThread& progress_;
  CoderThreads& coders_;
};

}  // namespace jaxccomp
