#include "collective/algorithm.h"

#include <string>

#include "collective/algorithms.h"
#include "collective/defaults.h"

namespace jaxccomp {
namespace {

constexpr Blocks kOne = Blocks::kOne, kEach = Blocks::kPerRank;
constexpr bool kSendsPartial = true;

constexpr CollectiveInfo kCollectives[kCollectiveCount] = {
    // id, name, input, output, reduces, rooted
    {Collective::kBcast, "bcast", kOne, kOne, false, true},
    {Collective::kAllreduce, "allreduce", kOne, kOne, true, false},
    {Collective::kReduce, "reduce", kOne, kOne, true, true},
    {Collective::kAllgather, "allgather", kOne, kEach, false, false},
    {Collective::kGather, "gather", kOne, kEach, false, true},
    {Collective::kScatter, "scatter", kEach, kOne, false, true},
    {Collective::kReduceScatter, "reduce_scatter", kEach, kOne, true, false},
    {Collective::kAlltoall, "alltoall", kEach, kEach, false, false},
    {Collective::kAllgatherv, "allgatherv", kOne, kEach, false, false},
    {Collective::kGatherv, "gatherv", kOne, kEach, false, true},
    {Collective::kScatterv, "scatterv", kEach, kOne, false, true},
    {Collective::kReduceScatterv, "reduce_scatterv", kEach, kOne, true, false},
    {Collective::kAlltoallv, "alltoallv", kEach, kEach, false, false},
    {Collective::kRaggedAlltoall, "ragged_alltoall", kOne, kOne, false, false},
    {Collective::kScan, "scan", kOne, kOne, true, false},
    {Collective::kExscan, "exscan", kOne, kOne, true, false},
    {Collective::kBarrier, "barrier", kOne, kOne, false, false},
    {Collective::kSend, "send", kOne, kOne, false, false},
    {Collective::kRecv, "recv", kOne, kOne, false, false},
    {Collective::kSendrecv, "sendrecv", kOne, kOne, false, false},
    {Collective::kPermute, "permute", kOne, kOne, false, false},
};

// B: bytes of a block, n: ranks. Sent: by the busiest rank.
constexpr Algorithm kAlgorithms[] = {
    {Collective::kBcast, "chain", "chunks down a chain, n-1+chunks steps, sends B", BcastChain},
    {Collective::kBcast, "chain_recoded",
     "as chain, but every hop decodes and encodes anew, as point-to-point compression does: to"
     " compare with; a lossy codec leaves other values on each rank",
     BcastChainRecoded},
    {Collective::kBcast, "binomial",
     "chunks down a tree, log2 n steps, sends B log2 n",
     BcastBinomial},
    {Collective::kBcast, "scatter_allgather",
     "parts to all, then a ring, n-1 steps, sends 2B",
     BcastScatterAllgather},

    {Collective::kAllreduce, "two_shot",
     "part i to rank i, merged at once, then to all, 2 steps, sends 2B(n-1)/n",
     AllreduceTwoShot},
    {Collective::kAllreduce, "one_shot",
     "blocks to all, merged at once, 1 step, sends B(n-1)",
     AllreduceOneShot},
    {Collective::kAllreduce, "recursive_doubling",
     "exchange with partners at 1, 2, 4, ..., log2 n steps, sends B log2 n",
     AllreduceRecursiveDoubling, kSendsPartial},
    {Collective::kAllreduce, "parameter_server",
     "parts to their servers, merged at once, then to all, 2 steps; servers take turns from "
     "operation to operation; partitions=K: into so many parts",
     AllreduceParameterServer},
    {Collective::kAllreduce, "hierarchical",
     "to the leader of each group, between g leaders as two_shot, coded, and back; leaders "
     "send each other 2B(g-1)/g; groups are the ranks of a host",
     AllreduceHierarchical, kSendsPartial},
    {Collective::kAllreduce, "ring",
     "chunks twice around a ring, 2(n-1) steps, sends 2B(n-1)/n to one neighbour",
     AllreduceRing, kSendsPartial},

    {Collective::kReduce, "direct",
     "blocks to the root, merged at once, 1 step, sends B",
     ReduceDirect},
    {Collective::kReduce, "binomial", "chunks up a tree, log2 n steps, sends B", ReduceBinomial,
     kSendsPartial},

    {Collective::kAllgather, "direct", "blocks to all, 1 step, sends B(n-1)", AllgatherDirect},
    {Collective::kAllgather, "ring",
     "chunks around a ring, n-1 steps, sends B(n-1) to one neighbour",
     AllgatherRing},
    {Collective::kAllgather, "bruck",
     "1, 2, 4, ... blocks at once, log2 n steps, sends B(n-1)",
     AllgatherBruck},

    {Collective::kGather, "direct", "blocks to the root, 1 step, sends B", GatherDirect},
    {Collective::kGather, "binomial",
     "subtrees' blocks up a tree, log2 n steps, sends up to nB/2",
     GatherBinomial},

    {Collective::kScatter, "direct", "blocks from the root, 1 step, sends B(n-1)", ScatterDirect},
    {Collective::kScatter, "binomial",
     "subtrees' blocks down a tree, log2 n steps, sends B(n-1)",
     ScatterBinomial},

    {Collective::kReduceScatter, "direct",
     "block i to rank i, merged at once, 1 step, sends B(n-1)",
     ReduceScatterDirect},
    {Collective::kReduceScatter, "ring",
     "chunks around a ring, n-1 steps, sends B(n-1) to one neighbour",
     ReduceScatterRing, kSendsPartial},

    {Collective::kAlltoall, "pairwise",
     "exchange with rank +- s at step s, sends B(n-1)",
     AlltoallPairwise},
    {Collective::kAlltoall, "bruck",
     "blocks by the digits of their way, log2 n steps, sends B(n/2) log2 n",
     AlltoallBruck},

    {Collective::kAllgatherv, "direct", "blocks to all, 1 step", AllgatherDirect},
    {Collective::kAllgatherv, "ring", "chunks around a ring, n-1 steps", AllgatherRing},
    {Collective::kGatherv, "direct", "blocks to the root, 1 step", GatherDirect},
    {Collective::kScatterv, "direct", "blocks from the root, 1 step", ScatterDirect},
    {Collective::kReduceScatterv, "direct",
     "block i to rank i, merged at once, 1 step",
     ReduceScatterDirect},
    {Collective::kAlltoallv, "pairwise", "exchange with rank +- s at step s", AlltoallPairwise},
    {Collective::kRaggedAlltoall, "direct", "ranges to their ranks, 1 step", RaggedAlltoallDirect},

    {Collective::kScan, "chain", "chunks down the line, n-1+chunks steps, sends B", ScanChain,
     kSendsPartial},
    {Collective::kScan, "recursive_doubling",
     "sums of 1, 2, 4, ... ranks, log2 n steps, sends B log2 n",
     ScanRecursiveDoubling, kSendsPartial},
    {Collective::kExscan, "chain", "chunks down the line, n-1+chunks steps, sends B", ExscanChain,
     kSendsPartial},
    {Collective::kExscan, "recursive_doubling",
     "sums of 1, 2, 4, ... ranks, log2 n steps, sends B log2 n",
     ExscanRecursiveDoubling, kSendsPartial},

    {Collective::kBarrier, "dissemination",
     "empty messages to 1, 2, 4, ... after, log2 n steps",
     BarrierDissemination},
    {Collective::kSend, "direct", "the block to its destination", PairsDirect},
    {Collective::kRecv, "direct", "the block from its source", PairsDirect},
    {Collective::kSendrecv, "direct", "a block out, a block in, 1 step", PairsDirect},
    {Collective::kPermute, "direct", "every pair at once, 1 step", PairsDirect},
};

}  // namespace

std::span<const CollectiveInfo> CollectiveTable() { return kCollectives; }

const CollectiveInfo& Info(Collective c) { return kCollectives[static_cast<int>(c)]; }

Result<Collective> ParseCollective(std::string_view name) {
  std::string known;
  for (const CollectiveInfo& info : kCollectives) {
    if (info.name == name) return info.id;
    known += known.empty() ? "" : ", ";
    known += info.name;
  }
  return Status(jaxccomp::Code::kInvalidArgument,
                "unknown collective \"" + std::string(name) + "\"; known are " + known);
}

std::span<const Algorithm> AlgorithmTable() { return kAlgorithms; }

Result<const Algorithm*> SelectAlgorithm(Collective c, std::string_view name,
                                         const Problem& problem) {
  const std::string_view wanted = name == "auto" ? DefaultAlgorithm(c, problem) : name;
  std::string known = "auto";
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.collective != c) continue;
    if (algorithm.name == wanted) return &algorithm;
    known += ", ";
    known += algorithm.name;
  }
  return Status(jaxccomp::Code::kInvalidArgument,
                std::string(Info(c).name) + " has no algorithm \"" + std::string(name) +
                    "\"; it has " + known);
}

}  // namespace jaxccomp
