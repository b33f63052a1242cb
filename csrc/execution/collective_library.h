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

// One collective of one tensor. `in` is this rank's operand and `out` its result. They may be the same memory; either
// is null if the rank has none.
struct LibraryCall {
  Collective collective = Collective::kBarrier;
  ReduceOp reduce_op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  int root = 0;
  int64_t count = 0;   // values in a block (CollectiveInfo), at most kMaxCount
  // For a v-variant, instead of `count`: values in each block of `in` and of `out`, which are contiguous. A side that
  // is all this rank's own has one block.
  std::vector<int> gives, takes;
  const void* in = nullptr;
  void* out = nullptr;
};

class CollectiveLibrary {
 public:
  static constexpr int64_t kMaxCount = INT32_MAX;
  using Communicator = uint64_t;

  virtual ~CollectiveLibrary() = default;
  // Makes a communicator of these processes, ranked in this order. All of them call it with the same `id`, which no
  // other communicator has that some of them are making. Ids are small and grow. The call waits for the others, so it
  // is made without the engine's lock, on a thread of its own.
  virtual Result<Communicator> MakeCommunicator(const std::vector<int>& processes, uint64_t id) = 0;
  // Starts a collective; all ranks start the same ones in the same order. Calls `done` when it is over here, maybe at
  // once. The library uses the memory until then.
  virtual void Start(Communicator communicator, const LibraryCall& call, Completion* done) = 0;
  // Makes progress. True if any collective has ended.
  virtual bool Poll() = 0;
  // Stops calling the library; its open collectives end with the error `why`.
  virtual void Freeze(const Status& why) = 0;
};

}  // namespace jaxccomp
