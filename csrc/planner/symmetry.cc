#include "planner/symmetry.h"

#include <bit>
#include <set>
#include <span>
#include <string_view>

namespace jaxccomp {
namespace {

struct Row {
  Collective collective;
  std::string_view algorithm;
  Symmetry symmetry;
  bool parts;              // the algorithm cuts blocks into parts, which must have equal sizes
};

using enum Collective;
using enum Symmetry;

// Algorithms in which all ranks have the same role. All others have a root, a first or a last rank.
constexpr Row kRows[] = {
    {kAllreduce, "two_shot", kRotation, true},
    {kAllreduce, "one_shot", kRotation, false},
    {kAllreduce, "ring", kRotation, true},
    {kAllreduce, "hierarchical", kRotation, true},
    {kAllreduce, "parameter_server", kRotation, true},
    {kAllreduce, "recursive_doubling", kExchange, false},
    {kAllgather, "direct", kRotation, false},
    {kAllgather, "ring", kRotation, false},
    {kAllgather, "bruck", kRotation, false},
    {kReduceScatter, "direct", kRotation, false},
    {kReduceScatter, "ring", kRotation, false},
    {kAlltoall, "pairwise", kRotation, false},
    {kAlltoall, "bruck", kRotation, false},
    {kBarrier, "dissemination", kRotation, false},
};

bool SameSizes(std::span<const Slot> a, std::span<const Slot> b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].space != b[i].space || a[i].bytes() != b[i].bytes()) return false;
  }
  return true;
}

bool SameTasks(const Schedule& a, const Schedule& b, auto&& peers_alike) {
  if (a.tasks.size() != b.tasks.size() || a.scratch.size() != b.scratch.size() ||
      a.code.size() != b.code.size() || a.lane_series != b.lane_series ||
      a.slim_lanes != b.slim_lanes || a.deps != b.deps) {
    return false;
  }
  for (size_t i = 0; i < a.tasks.size(); ++i) {
    const Task &x = a.tasks[i], &y = b.tasks[i];
    const bool transfer = x.kind == TaskKind::kSend || x.kind == TaskKind::kRecv;
    // Merges may list the same sources in different orders.
    const bool same_sources = x.kind == TaskKind::kMerge ? x.source_count == y.source_count
                                                         : SameSizes(a.SourcesOf(x), b.SourcesOf(y));
    if (x.kind != y.kind || x.lane != y.lane || x.dst.space != y.dst.space ||
        x.dst.bytes() != y.dst.bytes() || x.dep_count != y.dep_count || !same_sources ||
        (transfer && !peers_alike(x.peer, y.peer))) {
      return false;
    }
  }
  return true;
}

std::vector<uint32_t> TagsOf(const Schedule& schedule, TaskKind kind, int peer) {
  std::vector<uint32_t> tags;
  for (const Task& task : schedule.tasks) {
    if (task.kind == kind && task.peer == peer) tags.push_back(task.tag);
  }
  return tags;
}

// Whether messages between these hosts are received in the order of sending. Tags may name ranks or parts, and so
// differ between hosts; the order may not.
bool KeepOrder(const std::vector<Schedule>& senders, int sender, const std::vector<Schedule>& receivers,
               int receiver, int ranks_per_host) {
  for (int from = 0; from < ranks_per_host; ++from) {
    for (int to = 0; to < ranks_per_host; ++to) {
      if (TagsOf(senders[from], TaskKind::kSend, receiver * ranks_per_host + to) !=
          TagsOf(receivers[to], TaskKind::kRecv, sender * ranks_per_host + from)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

bool IsAlike(const Algorithm& algorithm, Problem problem, int ranks_per_host, Symmetry symmetry,
             const std::vector<Schedule>& first, int host) {
  const int hosts = problem.ranks / ranks_per_host;
  std::vector<Schedule> others;
  for (int local = 0; local < ranks_per_host; ++local) {
    problem.rank = host * ranks_per_host + local;
    others.push_back(algorithm.build(problem));
    const bool same = SameTasks(first[local], others.back(), [&](int of_first, int of_other) {
      return of_first % ranks_per_host == of_other % ranks_per_host &&
             of_first / ranks_per_host ==
                 Distance(symmetry, host, of_other / ranks_per_host, hosts);
    });
    if (!same) return false;
  }
  return KeepOrder(first, 0, others, host, ranks_per_host) &&
         KeepOrder(others, host, first, 0, ranks_per_host) &&
         KeepOrder(others, host, others, host, ranks_per_host);
}

Symmetry SymmetryOf(const Algorithm& algorithm, const Problem& problem, const Cluster& cluster) {
  const auto hosts = static_cast<int>(cluster.hosts.size());
  if (hosts < 2 || !cluster.HasEqualHosts()) return kNone;
  const int ranks_per_host = cluster.hosts[0].ranks;
  for (const Row& row : kRows) {
    if (row.collective != algorithm.collective || row.algorithm != algorithm.name) continue;
    if (row.parts && problem.block_bytes % (kBlockAlign * problem.ranks) != 0) return kNone;
    if (row.symmetry == kExchange && !std::has_single_bit(static_cast<unsigned>(hosts))) {
      return kNone;
    }
    std::vector<Schedule> first;
    Problem own = problem;
    for (own.rank = 0; own.rank < ranks_per_host; ++own.rank) first.push_back(algorithm.build(own));
    for (int host : std::set<int>{1, hosts / 2, hosts - 1}) {
      if (host > 0 && !IsAlike(algorithm, problem, ranks_per_host, row.symmetry, first, host)) {
        return kNone;
      }
    }
    return row.symmetry;
  }
  return kNone;
}

}  // namespace jaxccomp
