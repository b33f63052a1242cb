// Interface of a library of collectives between processes, such as MPI (mpi_collectives/).
#pragma once

#include <cstdint>
#include <vector>

#include "collective/algorithm.h"
#include "common/completion.h"
#include "common/dtype.h"
#include "common/status.h"
#include "reduce/reduce.h"

namespace jaxccomp {

// One collective of one tensor. `in` is this rank's operand and `out` its result, null if the rank has none. Both may
// be the same memory.
struct LibraryCall {
  Collective collective = Collective::kBarrier;
  ReduceOp reduce_op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  int root = 0;
  int64_t count = 0;   // values in a block (CollectiveInfo), at most kMaxCount
  // For a v-variant, instead of `count`: number of values in each block of `in` and of `out`. Blocks are contiguous. An
  // operand or result that holds only this rank's block has one entry.
  std::vector<int> gives, takes;
  const void* in = nullptr;
  void* out = nullptr;
};

class CollectiveLibrary {
 public:
  static constexpr int64_t kMaxCount = INT32_MAX;
  using Communicator = uint64_t;

  virtual ~CollectiveLibrary() = default;
  // Makes a communicator of these processes, ranked in this order. All of the processes pass the same `id`. Two
  // communicators that are made at the same time have different ids if they share a process. Ids are small and
  // increase. The call waits for the other processes, so it is made without the engine's lock, on a thread of its own.
  virtual Result<Communicator> MakeCommunicator(const std::vector<int>& processes, uint64_t id) = 0;
  // Starts a collective. All ranks start the same collectives in the same order. Calls `done` when the collective is
  // complete on this rank, maybe before Start returns. The library uses the memory until then.
  virtual void Start(Communicator communicator, const LibraryCall& call, Completion* done) = 0;
  // Makes progress. True if any collective has ended.
  virtual bool Poll() = 0;
  // Stops calling the library; its open collectives end with the error `why`.
  virtual void Quiesce(const Status& why) = 0;
};

}  // namespace jaxccomp
