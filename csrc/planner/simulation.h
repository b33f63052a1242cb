// One run of a collective, event by event, on a described cluster: the schedules of all ranks, as the
// executor runs them (execution/executor.h), over links and cores that they share.
//
// Modelled: tasks start when what they depend on is done; computations queue, as many at a time as a rank has
// threads, and share the cores of their host; temporary memory is bounded, lanes from the lowest on. A message
// goes at once when it is sent. It takes its host's link up and its receiver's link down one message after the
// other, and the processors of both ends meanwhile; it is over when the slowest of these is.
// Time is a sum of the numbers given, and ties are broken by rules, so that equal input gives equal output.
#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "planner/cluster.h"
#include "planner/rank_tasks.h"
#include "planner/symmetry.h"

namespace jaxccomp {

struct BusySeconds {
  double encode = 0, decode = 0, merge = 0, copy = 0;
  double messages = 0;               // of processors, for messages
};

struct SimulatedRun {
  std::vector<double> rank_seconds;  // by rank: when its last task is done
  std::vector<int64_t> up_bytes, down_bytes;   // by host, over its link
  int64_t local_bytes = 0;           // that went between ranks of a host
  BusySeconds busy;                  // of all ranks together, seconds of a core
  int64_t task_count = 0;            // that were run one by one
  bool ended_early = false;          // it takes at least the limit, which stands for the times of all ranks
};

// `ranks` has the tasks of every rank, or those of the first host's where `only_first_host`. What takes at
// least `limit_seconds` is not run to its end: whoever compares need not know by how much it is slower.
Result<SimulatedRun> Simulate(std::vector<RankTasks> ranks, const Cluster& cluster,
                              Symmetry symmetry, bool only_first_host, double limit_seconds);

}  // namespace jaxccomp
