// What the fake of NCCL and of CUDA's driver (fake_nccl.cc) needs of a test, and what a test may do
// to it. The functions are looked up in the library: NCCL itself knows nothing of them.
#pragma once

#include <cstdint>

namespace jaxccomp::testing {

struct FakeNcclHooks {
  // Has `work(argument)` done by that stream, after all that it was given before.
  void (*push)(void* stream, void (*work)(void*), void* argument);
  // Where the memory at that device address can be touched.
  void* (*reach)(const void* address);
  // The rank that the stream belongs to, which has a GPU of its own, or shares one with others.
  int (*gpu)(void* stream);
};

// Settings of the fake, by name.
enum class FakeNcclSetting : int {
  kVersion,          // what ncclGetVersion says
  kFailInitOfRank,   // that rank's ncclCommInitRankConfig fails; -1: none
  kFailAsyncAfter,   // so many operations later a communicator finds an error; -1: never
  kRanksPerGpu,      // whose GPUs have the same UUID
  kJoinsAlone,       // the other ranks are in other processes: communicators are made, and cannot be used
};

using FakeNcclSetHooks = void (*)(const FakeNcclHooks*);      // "fake_nccl_set_hooks"
using FakeNcclSet = void (*)(int setting, int64_t value);     // "fake_nccl_set"
// How many communicators were aborted.
using FakeNcclCount = int64_t (*)();                          // "fake_nccl_aborted"
// The unique id that a communicator was last made with.
using FakeNcclLastId = const char* (*)();                     // "fake_nccl_last_id"
// Operations that spin on some stream now.
using FakeNcclSpinning = int64_t (*)();                       // "fake_nccl_spinning"

}  // namespace jaxccomp::testing
