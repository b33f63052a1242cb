// What is known of the life of the world's other processes: who has ended, or died, and why.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/status.h"

namespace jaxccomp {

// How the system tells a process of this host from a later one with the same number.
struct SystemProcess {
  int64_t pid = 0;          // 0: of another host, or not known
  uint64_t start_time = 0;  // since the system's start, in its own unit
};

// 0 when there is no such process any more, be it that its parent has not asked for its status yet.
uint64_t StartTimeOf(int64_t pid);

// Not thread-safe: used under the engine's lock.
class Peers {
 public:
  struct Gone {
    Status why;
    bool dead = false;   // it does not answer any more; otherwise it has ended its program
  };

  void SetProcesses(std::vector<SystemProcess> processes) { processes_ = std::move(processes); }
  // Remembers that. False when it adds nothing to what is known.
  bool Lose(int process, const Status& why, bool dead);
  // Another process has lost that one; this one has not, and may reach it.
  void Report(int process, const std::string& why) { reported_.try_emplace(process, why); }
  const std::map<int, std::string>& reported() const { return reported_; }
  void ForgetReports() { reported_.clear(); }
  // Null for who has, as far as is known, not gone.
  const Gone* Find(int process) const;
  const std::map<int, Gone>& gone() const { return gone_; }
  // Those of this host that have died, each once. Looks at the system, some microseconds a process.
  std::vector<int> FindDead();

 private:
  std::vector<SystemProcess> processes_;   // by number in the world
  std::map<int, Gone> gone_;
  std::map<int, std::string> reported_;    // by process: why another one has lost it
};

}  // namespace jaxccomp
