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
class Wire;
struct EngineLock;

// All members take the engine's lock.
class Membership {
 public:
  Membership(EngineLock* lock, Registry* registry, Wire* wire, Failures* failures, ProgressThread* progress,
             CoderThreads* coders)
      : lock_(*lock), registry_(*registry), wire_(*wire), failures_(*failures), progress_(*progress),
        coders_(*coders) {}

  int process() const;
  int processes() const;
  // Global device ids and the process that each belongs to.
  void SetDevices(const std::vector<std::pair<int64_t, int>>& devices);
  // By process, the number of its host, the same on all processes. Call it before the first operation.
  void SetHosts(std::vector<int> hosts);
  // Appends processes to the world, by their addresses on the transport (Transport::AddProcesses).
  Status AddProcesses(const std::vector<std::string>& addresses);
  Status AddCommunicator(const std::string& name, std::vector<int> processes);
  // Removes the communicator and notifies members that wait for this one. Returns an error while an operation on it
  // is open.
  Status FreeCommunicator(const std::string& name);

  // The processes of the world that run on this host, by number; others have pid 0. If one of them dies
  // without a report, this is noticed while an operation waits.
  void SetSystemProcesses(std::vector<SystemProcess> processes);
  // The group continues without that process: it had ended before this one joined, or has been dropped.
  void SetGone(int process, const std::string& why);
  // The group agrees on its members from now on (Failures::LetGroupAgree).
  void LetGroupAgree();
  // The reasons, by process, for processes that only others have lost since ForgetReports.
  std::map<int, std::string> FindReported();
  void ForgetReports();
  // Polls the transports, then returns the processes that are known to have failed or died.
  std::map<int, Peers::Gone> FindGone();
  // This process ends because of a failure: reports the reason ("has ended with ValueError: no") to all others, whose
  // operations with this process fail at once.
  void Announce(const std::string& how);

 private:
  EngineLock& lock_;
  Registry& registry_;
  Wire& wire_;
  Failures& failures_;
  ProgressThread& progress_;
  CoderThreads& coders_;
};

}  // namespace jaxccomp
