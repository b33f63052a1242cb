// The cores of a machine, which all jobs share evenly: with n jobs on c cores each runs at min(1, c / n) of a core.
#pragma once

#include <cstdint>
#include <queue>
#include <tuple>
#include <vector>

#include "collective/schedule.h"

namespace jaxccomp {

// Jobs that end at the same time end in this order, which is the same on every host.
struct ProcessorJob {
  double end = 0;          // virtual time: core seconds that a job present since the start has received
  int32_t local_rank = 0;
  int32_t kind = 0;
  int32_t source = 0;
  TaskId task = 0;
  int32_t rank = 0;

  auto Order() const { return std::tie(end, local_rank, kind, source, task, rank); }
  bool operator>(const ProcessorJob& other) const { return Order() > other.Order(); }
};

class Processors {
 public:
  // `copies`: each job stands for this many equal jobs, of hosts that do the same at the same time.
  Processors(int cores, int copies) : cores_(cores), copies_(copies) {}

  // Adds a job that takes `seconds` of a core.
  void Add(double now, double seconds, ProcessorJob job);
  // Removes the job that ends now.
  ProcessorJob Take(double now);
  bool idle() const { return jobs_.empty(); }
  // The end of the next job, if no others are added.
  double NextEnd() const;
  double busy_seconds() const { return busy_seconds_; }   // over all cores

 private:
  double Rate() const;
  void Advance(double now);

  const double cores_;
  const double copies_;
  double done_ = 0;        // virtual time now
  double now_ = 0;
  double busy_seconds_ = 0;
  std::priority_queue<ProcessorJob, std::vector<ProcessorJob>, std::greater<>> jobs_;
};

}  // namespace jaxccomp
