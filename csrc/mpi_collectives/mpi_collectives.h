// MPI's own non-blocking collectives, through the libmpi that mpi4py has loaded: backend="mpi".
//
// MPI reduces sums, products and bit operations itself. It calls our functions (reductions.h) for half types, which MPI
// lacks, and for min and max of floating types, where MPI may lose a NaN.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "execution/collective_library.h"
#include "transport/mpi/mpi_library.h"
#include "transport/mpi/mpi_requests.h"

namespace jaxccomp {

// MPI's handles, and constants that differ between MPIs.
struct MpiCollectivesConfig {
  MpiHandle comm = 0;             // a duplicate of the world for this use only, with MPI_ERRORS_RETURN set
  MpiHandle errors_return = 0;    // MPI_ERRORS_RETURN
  uint64_t in_place = 0;          // MPI_IN_PLACE
  int64_t tag_ub = 0;             // MPI_TAG_UB
  std::array<MpiHandle, kDTypeCount> types{};
  std::array<MpiHandle, kReduceOpCount> ops{};   // MPI's own
};

class MpiCollectives final : public CollectiveLibrary {
 public:
  static Result<std::unique_ptr<MpiCollectives>> Create(const MpiCollectivesConfig& config);

  Result<Communicator> MakeCommunicator(const std::vector<int>& processes, uint64_t id) override;
  void Start(Communicator communicator, const LibraryCall& call, Completion* done) override;
  bool Poll() override;
  void Quiesce(const Status& why) override;

 private:
  struct Functions {
    int (*comm_group)(MpiHandle, MpiHandle*);
    int (*group_incl)(MpiHandle, int, const int*, MpiHandle*);
    int (*group_free)(MpiHandle*);
    int (*comm_create_group)(MpiHandle, MpiHandle, int, MpiHandle*);
    int (*comm_set_errhandler)(MpiHandle, MpiHandle);
    int (*op_create)(void (*)(void*, void*, int*, void*), int, MpiHandle*);
    int (*ibcast)(void*, int, MpiHandle, int, MpiHandle, MpiHandle*);
    int (*iallreduce)(const void*, void*, int, MpiHandle, MpiHandle, MpiHandle, MpiHandle*);
    int (*ireduce)(const void*, void*, int, MpiHandle, MpiHandle, int, MpiHandle, MpiHandle*);
    int (*ireduce_scatter_block)(const void*, void*, int, MpiHandle, MpiHandle, MpiHandle, MpiHandle*);
    int (*iallgather)(const void*, int, MpiHandle, void*, int, MpiHandle, MpiHandle, MpiHandle*);
    int (*igather)(const void*, int, MpiHandle, void*, int, MpiHandle, int, MpiHandle, MpiHandle*);
    int (*iscatter)(const void*, int, MpiHandle, void*, int, MpiHandle, int, MpiHandle, MpiHandle*);
    int (*iscan)(const void*, void*, int, MpiHandle, MpiHandle, MpiHandle, MpiHandle*);
    int (*iexscan)(const void*, void*, int, MpiHandle, MpiHandle, MpiHandle, MpiHandle*);
    int (*ialltoall)(const void*, int, MpiHandle, void*, int, MpiHandle, MpiHandle, MpiHandle*);
    int (*ireduce_scatter)(const void*, void*, const int*, MpiHandle, MpiHandle, MpiHandle, MpiHandle*);
    int (*iallgatherv)(const void*, int, MpiHandle, void*, const int*, const int*, MpiHandle, MpiHandle,
                       MpiHandle*);
    int (*igatherv)(const void*, int, MpiHandle, void*, const int*, const int*, MpiHandle, int, MpiHandle,
                    MpiHandle*);
    int (*iscatterv)(const void*, const int*, const int*, MpiHandle, void*, int, MpiHandle, int, MpiHandle,
                     MpiHandle*);
    int (*ialltoallv)(const void*, const int*, const int*, MpiHandle, void*, const int*, const int*, MpiHandle,
                      MpiHandle, MpiHandle*);
  };
  // For a v-variant: sizes and offsets of the blocks. MPI reads them until the collective is over.
  struct Blocks {
    std::vector<int> gives, gives_at, takes, takes_at;
  };
  struct Running {
    MpiRequest request;
    Completion* done = nullptr;
    Collective collective = Collective::kBarrier;
    std::unique_ptr<const Blocks> blocks;   // for v-variants
  };

  MpiCollectives(const MpiLibrary* mpi, const MpiCollectivesConfig& config) : mpi_(*mpi), config_(config) {}
  Status Open();
  MpiHandle OpFor(DType dtype, ReduceOp op) const;
  int Call(Communicator comm, const LibraryCall& call, const Blocks* blocks, MpiHandle* request) const;
  Status Error(const std::string& call, int error) const;

  const MpiLibrary& mpi_;
  const MpiCollectivesConfig config_;
  Functions f_{};
  MpiHandle world_group_ = 0;
  std::array<std::array<MpiHandle, kReduceOpCount>, kDTypeCount> own_ops_{};   // 0: MPI's own is used
  std::vector<Running> running_;
  size_t next_ = 0;   // index of the next request to test
};

}  // namespace jaxccomp
