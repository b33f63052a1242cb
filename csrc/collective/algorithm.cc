#include "collective/algorithm.h"

#include <string>

#include "collective/algorithms.h"
#include "collective/patterns/forest.h"

namespace jaxccomp {
namespace {

constexpr Blocks kOne = Blocks::kOne, kEach = Blocks::kPerRank;

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

// B: bytes of a block, n: ranks. Sent: by the busiest rank. Default: where "auto" picks it
// (Default(), below); no remark where it is the only one.
constexpr Algorithm kAlgorithms[] = {
    {Collective::kBcast, "chain",
     "chunks down a chain, n-1+chunks steps, sends B; default above 32 KiB", BcastChain},
    {Collective::kBcast, "chain_recoded",
     "as chain, but every hop decodes and encodes anew, as point-to-point compression does: to "
     "compare with; a lossy codec leaves other values on each rank",
     BcastChainRecoded},
    {Collective::kBcast, "binomial",
     "chunks down a tree, log2 n steps, sends B log2 n; default up to 32 KiB", BcastBinomial},
    {Collective::kBcast, "scatter_allgather",
     "parts to all, then a ring, n-1 steps, sends 2B; default from 9 ranks, 32 KiB to 1 MiB",
     BcastScatterAllgather},

    {Collective::kAllreduce, "two_shot",
     "part i to rank i, merged at once, then to all, 2 steps, sends 2B(n-1)/n; default otherwise",
     AllreduceTwoShot},
    {Collective::kAllreduce, "one_shot",
     "blocks to all, merged at once, 1 step, sends B(n-1); default up to 4 KiB and 4 ranks, for "
     "half types and codecs up to nB = 64 KiB and 8 ranks; with a codec always on 2 ranks",
     AllreduceOneShot},
    {Collective::kAllreduce, "recursive_doubling",
     "exchange with partners at 1, 2, 4, ..., log2 n steps, sends B log2 n; default up to 32 KiB "
     "from 5 ranks, except for half types and codecs",
     AllreduceRecursiveDoubling},
    {Collective::kAllreduce, "parameter_server",
     "parts to their servers, merged at once, then to all, 2 steps; servers take turns from "
     "operation to operation; partitions=K: into so many parts",
     AllreduceParameterServer},
    {Collective::kAllreduce, "hierarchical",
     "to the leader of each group, between g leaders as two_shot, coded, and back; leaders send each "
     "other 2B(g-1)/g; level=host: groups are hosts, with GPUs that ranks share within; level=gpu: "
     "they are GPUs; default above 1 MiB where ranks share hosts, or, on one host with device IPC, GPUs",
     AllreduceHierarchical},
    {Collective::kAllreduce, "ring",
     "chunks twice around a ring, 2(n-1) steps, sends 2B(n-1)/n to one neighbour",
     AllreduceRing},

    {Collective::kReduce, "direct",
     "blocks to the root, merged at once, 1 step, sends B; default up to 4 ranks, for half types "
     "and codecs",
     ReduceDirect},
    {Collective::kReduce, "binomial",
     "chunks up a tree, log2 n steps, sends B; default from 5 ranks", ReduceBinomial},

    {Collective::kAllgather, "direct",
     "blocks to all, 1 step, sends B(n-1); default up to 8 ranks or 32 KiB", AllgatherDirect},
    {Collective::kAllgather, "ring",
     "chunks around a ring, n-1 steps, sends B(n-1) to one neighbour; default otherwise",
     AllgatherRing},
    {Collective::kAllgather, "bruck",
     "1, 2, 4, ... blocks at once, log2 n steps, sends B(n-1); default from 9 ranks up to 4 KiB "
     "without a codec",
     AllgatherBruck},

    {Collective::kGather, "direct", "blocks to the root, 1 step, sends B; default otherwise",
     GatherDirect},
    {Collective::kGather, "binomial",
     "subtrees' blocks up a tree, log2 n steps, sends up to nB/2; default from 16 ranks up to "
     "4 KiB without a codec",
     GatherBinomial},

    {Collective::kScatter, "direct",
     "blocks from the root, 1 step, sends B(n-1); default otherwise", ScatterDirect},
    {Collective::kScatter, "binomial",
     "subtrees' blocks down a tree, log2 n steps, sends B(n-1); default from 16 ranks up to "
     "4 KiB without a codec",
     ScatterBinomial},

    {Collective::kReduceScatter, "direct",
     "block i to rank i, merged at once, 1 step, sends B(n-1); default up to 8 ranks or 32 KiB, "
     "for half types and codecs",
     ReduceScatterDirect},
    {Collective::kReduceScatter, "ring",
     "chunks around a ring, n-1 steps, sends B(n-1) to one neighbour; default otherwise",
     ReduceScatterRing},

    {Collective::kAlltoall, "pairwise",
     "exchange with rank +- s at step s, sends B(n-1); default otherwise", AlltoallPairwise},
    {Collective::kAlltoall, "bruck",
     "blocks by the digits of their way, log2 n steps, sends B(n/2) log2 n; default from 8 ranks "
     "up to 256 bytes without a codec",
     AlltoallBruck},

    {Collective::kAllgatherv, "direct", "blocks to all, 1 step; default up to 8 ranks",
     AllgatherDirect},
    {Collective::kAllgatherv, "ring",
     "chunks around a ring, n-1 steps; default from 9 ranks", AllgatherRing},
    {Collective::kGatherv, "direct", "blocks to the root, 1 step", GatherDirect},
    {Collective::kScatterv, "direct", "blocks from the root, 1 step", ScatterDirect},
    {Collective::kReduceScatterv, "direct", "block i to rank i, merged at once, 1 step",
     ReduceScatterDirect},
    {Collective::kAlltoallv, "pairwise", "exchange with rank +- s at step s",
     AlltoallPairwise},
    {Collective::kRaggedAlltoall, "direct", "ranges to their ranks, 1 step",
     RaggedAlltoallDirect},

    {Collective::kScan, "chain",
     "chunks down the line, n-1+chunks steps, sends B; default above 32 KiB", ScanChain},
    {Collective::kScan, "recursive_doubling",
     "sums of 1, 2, 4, ... ranks, log2 n steps, sends B log2 n; default up to 32 KiB",
     ScanRecursiveDoubling},
    {Collective::kExscan, "chain",
     "chunks down the line, n-1+chunks steps, sends B; default above 32 KiB", ExscanChain},
    {Collective::kExscan, "recursive_doubling",
     "sums of 1, 2, 4, ... ranks, log2 n steps, sends B log2 n; default up to 32 KiB",
     ExscanRecursiveDoubling},

    {Collective::kBarrier, "dissemination", "empty messages to 1, 2, 4, ... after, log2 n steps",
     BarrierDissemination},
    {Collective::kSend, "direct", "the block to its destination", PairsDirect},
    {Collective::kRecv, "direct", "the block from its source", PairsDirect},
    {Collective::kSendrecv, "direct", "a block out, a block in, 1 step", PairsDirect},
    {Collective::kPermute, "direct", "every pair at once, 1 step", PairsDirect},
};

// Whether leaders of groups have less to send than all ranks: through links between hosts, or, as long
// as nothing leaves a GPU for another rank of it, between GPUs.
bool SparesLinks(const Problem& problem) {
  return ComeInGroups(problem.hosts, problem.ranks) ||
         (problem.gpus_share_memory && ComeInGroups(problem.gpus, problem.ranks));
}

// The static rules behind "auto"; the remarks in the table say the same. Half types are merged
// at once where they can be (one rounding instead of one per step), and so are coded values
// (one or two codings instead of one per hop). Algorithms that gain by packing blocks into one
// message are picked only where that is possible.
std::string_view Default(Collective c, const Problem& problem) {
  constexpr int64_t kKiB = 1024;
  const int64_t bytes = problem.block_bytes;
  const int ranks = problem.ranks;
  const bool small = bytes <= 32 * kKiB;
  const bool merge_at_once = problem.wide || problem.coded;
  const bool packs = problem.multi_slot && !problem.coded;
  switch (c) {
    case Collective::kBcast:
      if (small) return "binomial";
      return ranks >= 9 && bytes <= 1024 * kKiB ? "scatter_allgather" : "chain";
    case Collective::kAllreduce:
      if (bytes > 1024 * kKiB && SparesLinks(problem)) return "hierarchical";
      // One coding instead of two, for as many bytes.
      if (problem.coded && ranks == 2) return "one_shot";
      if (merge_at_once) return ranks <= 8 && bytes <= 64 * kKiB / ranks ? "one_shot" : "two_shot";
      if (ranks <= 4) return bytes <= 4 * kKiB ? "one_shot" : "two_shot";
      return small ? "recursive_doubling" : "two_shot";
    case Collective::kReduce:
      return ranks <= 4 || merge_at_once ? "direct" : "binomial";
    case Collective::kAllgather:
      if (packs && ranks >= 9 && bytes <= 4 * kKiB) return "bruck";
      return ranks <= 8 || small ? "direct" : "ring";
    case Collective::kAllgatherv:
      return ranks <= 8 ? "direct" : "ring";
    case Collective::kGather:
    case Collective::kScatter:
      return packs && ranks >= 16 && bytes <= 4 * kKiB ? "binomial" : "direct";
    case Collective::kReduceScatter:
      return ranks <= 8 || small || merge_at_once ? "direct" : "ring";
    case Collective::kAlltoall:
      return packs && ranks >= 8 && bytes <= 256 ? "bruck" : "pairwise";
    case Collective::kScan:
    case Collective::kExscan:
      return small ? "recursive_doubling" : "chain";
    case Collective::kAlltoallv:
      return "pairwise";
    case Collective::kBarrier:
      return "dissemination";
    case Collective::kGatherv:
    case Collective::kScatterv:
    case Collective::kReduceScatterv:
    case Collective::kRaggedAlltoall:
    case Collective::kSend:
    case Collective::kRecv:
    case Collective::kSendrecv:
    case Collective::kPermute:
      return "direct";
  }
  return "direct";
}

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
  const std::string_view wanted = name == "auto" ? Default(c, problem) : name;
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
