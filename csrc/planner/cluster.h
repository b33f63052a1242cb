// The cluster that costs are predicted for: hosts, links, processors and a codec, as a profile describes them.
#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"

namespace jaxccomp {

// The cost of a message between two ranks of one class.
struct PairCost {
  double latency_seconds = 0;            // above 0
  double bytes_per_second = 0;           // of one message; between hosts the links' rates hold instead
  double processor_seconds = 0;          // at each end, per message
  double processor_seconds_per_byte = 0; // at each end, per byte
};

// Per core, in bytes of values.
struct CodecCost {
  double ratio = 1;                      // bytes of values / encoded bytes
  double max_code_bytes = 1;            // memory for a code, per byte of values
  double encode_rate = 0;
  double decode_rate = 0;
  double merge_rate = 0;                 // decode and reduce in one pass
  bool lossless = false;
};

struct HostCost {
  int ranks = 1;
  int cores = 1;
  double up_rate = 0;                    // of its link, bytes per second
  double down_rate = 0;
};

struct Cluster {
  std::vector<HostCost> hosts;           // ranks are numbered host by host
  int ranks_per_process = 1;             // ranks of one process move values within it
  bool one_machine = false;              // the hosts share the cores of the first one
  PairCost within_process, within_host, between_hosts;
  double copy_rate = 0, merge_rate = 0;  // per core, in bytes read
  double task_seconds = 0;               // per task, on one core
  double call_seconds = 0;               // before the first task
  CodecCost codec;

  int Ranks() const;
  std::vector<int> HostOfRanks() const;
  bool HasEqualHosts() const;
  // Whether all numbers are valid; `encoded`: whether the codec's are needed.
  Status Check(bool encoded) const;
};

}  // namespace jaxccomp
