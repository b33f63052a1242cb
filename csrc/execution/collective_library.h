// A library of collectives between processes, such as MPI (mpi_collectives/).
#pragma once

#include <cstdint>
#include <vector>

#include "collective/algorithm.h"
#include "common/completion.h"
#include "common/dtype.h"
#include "common/status.h"
#include "reduce/reduce.h"

namespace jaxccomp {

// One collective of one tensor. `in` is what this rank gives, `out` where its result goes, which may be the
// same memory; either may be null where the rank has none.
struct LibraryCall {
  Collective collective = Collective::kBarrier;
  ReduceOp reduce_op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  int root = 0;
  int64_t count = 0;   // values in a block (CollectiveInfo), at most kMostCount
  // Of a v-variant, in place of `count`: values in each block of `in` and of `out`, which lie one after the
  // other there. One block where all of the side is this rank's own.
  std::vector<int> gives, takes;
  const void* in = nullptr;
  void* out = nullptr;
};

class CollectiveLibrary {
 public:
  static constexpr int64_t kMostCount = INT32_MAX;
  using Communicator = uint64_t;

  virtual ~CollectiveLibrary() = default;
  // A communicator of these processes, whose ranks are their places here. All of them call it with the same `id`, which
  // no other communicator has that some of them are making. Ids are small and grow. Waits for the others: it is called without the
  // engine's lock, on a thread of its own.
  virtual Result<Communicator> MakeCommunicator(const std::vector<int>& processes, uint64_t id) = 0;
  // Begins a collective, of which all ranks begin the same ones in the same order. `done` is told when it is
  // over here, maybe at once; the memory is the library's until then.
  virtual void Start(Communicator communicator, const LibraryCall& call, Completion* done) = 0;
  // Advances all that has begun; true when anything has ended.
  virtual bool Poll() = 0;
  // From now on the library is not called, and all that has begun ends with this.
  virtual void Freeze(const Status& why) = 0;
};

}  // namespace jaxccomp
