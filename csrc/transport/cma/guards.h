// Validity tokens for memory that other processes read directly (peer_memory.h).
//
// A process that lets others read memory takes a guard: a word whose value no other word of any process holds. It
// revokes the guard before it reuses the memory. A reader that finds the value after its read has read the right data
// from the right process.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "common/status.h"

namespace jaxccomp {

// A guard's address and value, sent to other processes as they are.
struct GuardMark {
  uint64_t address = 0;
  uint64_t value = 0;   // 0: none
};

class Guards {
 public:
  // Lets processes of the same user read this process's memory, where Yama's ptrace_scope of 1 forbids it by default.
  static Status AllowReads();

  Guards();
  ~Guards();
  Guards(const Guards&) = delete;
  Guards& operator=(const Guards&) = delete;

  GuardMark Take();
  // When this returns, a reader finds the guard invalid.
  void Revoke(const GuardMark& mark);

 private:
  std::deque<std::atomic<uint64_t>> words_;   // at fixed addresses; 0: revoked
  std::vector<std::atomic<uint64_t>*> spare_;
  uint64_t next_;
};

}  // namespace jaxccomp
