// The build functions of the algorithm table: pure functions of the Problem. The definitions describe
// the algorithms.
#pragma once

#include "collective/algorithm.h"

namespace jaxccomp {

// bcast.cc
Schedule BcastChain(const Problem& problem);
Schedule BcastChainRecoded(const Problem& problem);
Schedule BcastBinomial(const Problem& problem);
Schedule BcastScatterAllgather(const Problem& problem);

// allreduce.cc
Schedule AllreduceOneShot(const Problem& problem);
Schedule AllreduceTwoShot(const Problem& problem);
Schedule AllreduceParameterServer(const Problem& problem);
Schedule AllreduceRing(const Problem& problem);
Schedule AllreduceRecursiveDoubling(const Problem& problem);

// hierarchical.cc
Schedule AllreduceHierarchical(const Problem& problem);

// reduce.cc
Schedule ReduceDirect(const Problem& problem);
Schedule ReduceBinomial(const Problem& problem);

// reduce_scatter.cc
Schedule ReduceScatterDirect(const Problem& problem);  // and reduce_scatterv
Schedule ReduceScatterRing(const Problem& problem);

// allgather.cc
Schedule AllgatherDirect(const Problem& problem);  // and allgatherv
Schedule AllgatherRing(const Problem& problem);    // and allgatherv
Schedule AllgatherBruck(const Problem& problem);

// gather_scatter.cc
Schedule GatherDirect(const Problem& problem);     // and gatherv
Schedule GatherBinomial(const Problem& problem);
Schedule ScatterDirect(const Problem& problem);    // and scatterv
Schedule ScatterBinomial(const Problem& problem);

// alltoall.cc
Schedule AlltoallPairwise(const Problem& problem);  // and alltoallv
Schedule AlltoallBruck(const Problem& problem);
Schedule RaggedAlltoallDirect(const Problem& problem);

// scan.cc
Schedule ScanChain(const Problem& problem);
Schedule ScanRecursiveDoubling(const Problem& problem);
Schedule ExscanChain(const Problem& problem);
Schedule ExscanRecursiveDoubling(const Problem& problem);

// point_to_point.cc
Schedule BarrierDissemination(const Problem& problem);
Schedule PairsDirect(const Problem& problem);  // send, recv, sendrecv, permute

}  // namespace jaxccomp
