// Validity tokens for memory that other processes read directly (peer_memory.h).
//
// A guard is a word of memory with a value that no other guard has. A process takes a guard before it lets others read
// a payload, and revokes the guard before it reuses the payload's memory. A reader copies the payload first and then
// reads the guard. If the guard still has the announced value, the copy is valid, and comes from the process that
// announced the payload.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "common/status.h"

namespace jaxccomp {

// Address and value of a guard, sent to other processes as raw bytes.
struct GuardMark {
  uint64_t address = 0;
  uint64_t value = 0;   // 0: none
};

class Guards {
 public:
  // Lets other processes of the same user read this process's memory. Yama's ptrace_scope 1 forbids it by default.
  static Status AllowReads();

  Guards();
  ~Guards();
  Guards(const Guards&) = delete;
  Guards& operator=(const Guards&) = delete;

  GuardMark Take();
  // After this call, readers find the guard invalid.
  void Revoke(const GuardMark& mark);

 private:
  std::deque<std::atomic<uint64_t>> words_;   // their addresses are stable; 0: revoked
  std::vector<std::atomic<uint64_t>*> spare_;
  uint64_t next_;
};

}  // namespace jaxccomp
