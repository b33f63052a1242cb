// What tells a process that reads this one's memory (peer_memory.h) whether what it has read was still there.
//
// Whoever lets others read some memory takes a guard: a word of this process that holds a value which no other
// word of this or another process holds. The guard is revoked before the memory is used for anything else. So
// a reader that finds the value after it has read has read what was meant, from the process that it meant.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "common/status.h"

namespace jaxccomp {

// A guard as others are told of it. Goes over the wire as it is.
struct GuardMark {
  uint64_t address = 0;
  uint64_t value = 0;   // 0: none
};

class Guards {
 public:
  // Where Linux asks for it (Yama's ptrace_scope of 1), this process lets processes of the same user read its
  // memory from now on.
  static Status AllowReads();

  Guards();
  ~Guards();
  Guards(const Guards&) = delete;
  Guards& operator=(const Guards&) = delete;

  GuardMark Take();
  // From when this returns on, whoever reads the guard is told.
  void Revoke(const GuardMark& mark);

 private:
  std::deque<std::atomic<uint64_t>> words_;   // which never move; 0: revoked
  std::vector<std::atomic<uint64_t>*> spare_;
  uint64_t next_;
};

}  // namespace jaxccomp
