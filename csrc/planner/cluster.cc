#include "planner/cluster.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace jaxccomp {
namespace {

constexpr int64_t kMaxRanks = 1 << 13;

Status Refuse(const std::string& what, double given, const std::string& allowed) {
  return {Code::kInvalidArgument,
          "a cluster's " + what + " must be " + allowed + ", not " + std::to_string(given)};
}

Status CheckRate(const std::string& name, double rate) {
  if (std::isfinite(rate) && rate >= 1 && rate <= 1e18) return Status::Ok();
  return Refuse(name, rate, "1 to 1e18 bytes per second");
}

Status CheckSeconds(const std::string& name, double seconds, double minimum) {
  if (std::isfinite(seconds) && seconds >= minimum && seconds <= 1e3) return Status::Ok();
  return Refuse(name, seconds, (minimum > 0 ? "1e-9" : "0") + std::string(" to 1000 seconds"));
}

Status CheckPair(const std::string& name, const PairCost& pair) {
  for (Status status : {CheckSeconds(name + " latency", pair.latency_seconds, 1e-9),
                        CheckRate(name + " rate", pair.bytes_per_second),
                        CheckSeconds(name + " time of a message", pair.processor_seconds, 0),
                        CheckSeconds(name + " time of a byte", pair.processor_seconds_per_byte, 0)}) {
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace

int Cluster::Ranks() const {
  int ranks = 0;
  for (const HostCost& host : hosts) ranks += host.ranks;
  return ranks;
}

std::vector<int> Cluster::HostOfRanks() const {
  std::vector<int> found;
  for (size_t host = 0; host < hosts.size(); ++host) {
    found.insert(found.end(), static_cast<size_t>(hosts[host].ranks), static_cast<int>(host));
  }
  return found;
}

bool Cluster::HasEqualHosts() const {
  return std::all_of(hosts.begin(), hosts.end(), [&](const HostCost& host) {
    return host.ranks == hosts[0].ranks && host.cores == hosts[0].cores &&
           host.up_rate == hosts[0].up_rate && host.down_rate == hosts[0].down_rate;
  });
}

Status Cluster::Check(bool encoded) const {
  if (hosts.empty()) return {Code::kInvalidArgument, "a cluster needs at least one host"};
  int64_t ranks = 0;
  for (const HostCost& host : hosts) {
    if (host.ranks < 1 || host.ranks > kMaxRanks) {
      return Refuse("ranks of a host", host.ranks, "1 to " + std::to_string(kMaxRanks));
    }
    if (host.cores < 1 || host.cores > 4096) return Refuse("cores", host.cores, "1 to 4096");
    ranks += host.ranks;
    for (Status status : {CheckRate("up rate", host.up_rate), CheckRate("down rate", host.down_rate)}) {
      if (!status.ok()) return status;
    }
  }
  if (ranks > kMaxRanks) {
    return Refuse("ranks", static_cast<double>(ranks), "at most " + std::to_string(kMaxRanks));
  }
  if (ranks_per_process < 1) return Refuse("ranks of a process", ranks_per_process, "at least 1");
  for (Status status :
       {CheckPair("process", within_process), CheckPair("host", within_host),
        CheckPair("link", between_hosts), CheckRate("copy rate", copy_rate),
        CheckRate("merge rate", merge_rate), CheckSeconds("time of a task", task_seconds, 0),
        CheckSeconds("time of a call", call_seconds, 0)}) {
    if (!status.ok()) return status;
  }
  if (!encoded) return Status::Ok();
  if (!(codec.ratio >= 0.1 && codec.ratio <= 1e6)) {
    return Refuse("ratio of a codec", codec.ratio, "0.1 to 1e6");
  }
  if (!(codec.max_code_bytes > 0 && codec.max_code_bytes <= 16)) {
    return Refuse("memory for a code", codec.max_code_bytes, "above 0 and up to 16");
  }
  for (Status status : {CheckRate("encode rate", codec.encode_rate),
                        CheckRate("decode rate", codec.decode_rate),
                        CheckRate("merge rate of a codec", codec.merge_rate)}) {
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace jaxccomp
