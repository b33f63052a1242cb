// Simulates one run of a collective on a described cluster, event by event: the schedules of all ranks, as the
// executor runs them (execution/executor.h), over shared links and cores.
//
// Modelled: tasks start when their dependencies are done. Computations queue, run on as many threads as a rank has, and
// share the cores of their host. Temporary memory is bounded, lowest lanes first. A message is sent at once. Messages
// pass their host's uplink and their receiver's downlink one after the other, and use the processors of both ends
// meanwhile; a message ends when the slowest of these ends. Times are sums of the given numbers, and ties are broken by
// rules, so equal input gives equal output.
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
  std::vector<double> rank_seconds;  // by rank: end of its last task
  std::vector<int64_t> up_bytes, down_bytes;   // by host, over its link
  int64_t local_bytes = 0;           // between ranks of a host
  BusySeconds busy;                  // sum over ranks, seconds of a core
  int64_t task_count = 0;            // tasks that were simulated
  bool ended_early = false;          // the run reached the limit; rank_seconds has the limit for all ranks
};

// `ranks` has the tasks of every rank, or only of the first host's if `only_first_host`. The simulation stops at
// `limit_seconds`: a comparison does not need the exact time of a slower candidate.
Result<SimulatedRun> Simulate(std::vector<RankTasks> ranks, const Cluster& cluster,
                              Symmetry symmetry, bool only_first_host, double limit_seconds);

}  // namespace jaxccomp
