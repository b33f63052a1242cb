// The other processes of the world that have ended or died, with the reasons.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/status.h"

namespace jaxccomp {

// Identifies a process of this host, also after the system has reused its pid.
struct SystemProcess {
  int64_t pid = 0;          // 0: on another host, or unknown
  uint64_t start_time = 0;  // clock ticks since the system's boot
};

// Returns SystemProcess::start_time of a process; 0 if it has ended, also while it is a zombie.
uint64_t StartTimeOf(int64_t pid);

// Not thread-safe: used under the engine's lock.
class Peers {
 public:
  struct Failure {
    Status why;
    bool dead = false;   // true: it no longer answers; false: it has reported its own end
  };

  void SetProcesses(std::vector<SystemProcess> processes) { processes_ = std::move(processes); }
  // Records a failed process. Returns false when this adds nothing to the record.
  bool MarkFailed(int process, const Status& why, bool dead);
  // Records that another process has lost `process`, which this one may still reach.
  void Report(int process, const std::string& why) { reported_.try_emplace(process, why); }
  const std::map<int, std::string>& reported() const { return reported_; }
  void ForgetReports() { reported_.clear(); }
  // Null if the process is not known to have gone.
  const Failure* Find(int process) const;
  const std::map<int, Failure>& failed() const { return failed_; }
  // Returns processes of this host that have died, each once. Takes a few microseconds a process.
  std::vector<int> FindDead();

 private:
  std::vector<SystemProcess> processes_;   // by number in the world
  std::map<int, Failure> failed_;
  std::map<int, std::string> reported_;    // by process: why another one has lost it
};

}  // namespace jaxccomp
