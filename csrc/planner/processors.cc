#include "planner/processors.h"

#include <algorithm>

namespace jaxccomp {

double Processors::Rate() const {
  const double jobs = static_cast<double>(jobs_.size()) * copies_;
  return jobs <= cores_ ? 1 : cores_ / jobs;
}

void Processors::Advance(double now) {
  if (now > now_ && !jobs_.empty()) done_ += (now - now_) * Rate();
  now_ = now;
}

void Processors::Add(double now, double seconds, ProcessorJob job) {
  Advance(now);
  job.end = done_ + seconds;
  busy_seconds_ += seconds * copies_;
  jobs_.push(job);
}

ProcessorJob Processors::Take(double now) {
  const ProcessorJob job = jobs_.top();
  // Assign the end exactly: rounding must not separate jobs that end at the same time.
  done_ = job.end;
  now_ = now;
  jobs_.pop();
  return job;
}

double Processors::NextEnd() const {
  return now_ + std::max(jobs_.top().end - done_, 0.0) / Rate();
}

}  // namespace jaxccomp
