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
  // By process a number for its host, the same on each of them. Before the first call.
  void SetHosts(std::vector<int> hosts);
  // Processes after those of the world, by their addresses on the transport (Transport::AddProcesses).
  Status AddProcesses(const std::vector<std::string>& addresses);
  Status AddCommunicator(const std::string& name, std::vector<int> processes);
  // Forgets it; members that wait for this one are told. An error while an operation on it is under way.
  Status FreeCommunicator(const std::string& name);

  // Which processes of the world run on this host, by number; others have pid 0. One that dies without
  // a word is noticed while something waits.
  void SetSystemProcesses(std::vector<SystemProcess> processes);
  // The group goes on without that process: it had gone before this one joined, or has been dropped.
  void SetGone(int process, const std::string& why);
  // The group agrees on its members from now on (Failures::LetGroupAgree).
  void LetGroupAgree();
  // By process that only others have lost since ForgetReports: why.
  std::map<int, std::string> FindReported();
  void ForgetReports();
  // Polls the transports, then returns the processes that are known to have failed or died.
  std::map<int, Peers::Gone> FindGone();
  // This process ends by a failure: all others are told why, "has ended with ValueError: no", and what
  // they wait for with it fails at once.
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
