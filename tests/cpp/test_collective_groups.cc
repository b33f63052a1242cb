// Allreduce `hierarchical` with ranks that share hosts: values, memory, and bytes sent between ranks.

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "collective/algorithm.h"
#include "collective/memory_limits.h"
#include "collective/patterns/forest.h"
#include "collective/schedule.h"
#include "collective_cases.h"

namespace jaxccomp {
namespace {

using testing::Find;
using testing::InOrderOfGroups;
using testing::Ranks;
using testing::VerifyAllreduce;

const Algorithm& Hierarchical() { return Find(Collective::kAllreduce, "hierarchical"); }

TEST(collective_hierarchical_is_right_for_typical_host_layouts) {
  for (int ranks : Ranks()) {
    std::vector<std::vector<int>> layouts(4, std::vector<int>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      layouts[0][rank] = 7;                    // one host
      layouts[1][rank] = rank / 2;             // two ranks each
      layouts[2][rank] = rank % 3;             // round robin
      layouts[3][rank] = rank == 1 ? 5 : 1000 - rank / 4;  // uneven
    }
    for (const auto& hosts : layouts) {
      if (!VerifyAllreduce(Hierarchical(), {.ranks = ranks, .hosts = hosts})) return;
    }
  }
}

const std::vector<std::vector<int>>& Placements() {
  static const std::vector<std::vector<int>> placements = {
      {7, 7, 7, 7},
      {0, 0, 1, 1},
      {0, 1, 0, 1},                            // alternating
      {0, 0, 0, 0, 1, 1, 1, 1},
      {0, 0, 0, 1, 2, 2},                      // 3 + 1 + 2
      {2, 0, 2, 1, 3, 1, 3, 0, 2},
      {0, 1, 2, 3},                            // one each
      // One host of four ranks and nine of one: ten parts.
      {0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
  };
  return placements;
}

TEST(collective_hierarchical_is_right_for_random_host_layouts) {
  std::mt19937 random(3);
  for (int ranks : Ranks()) {
    for (int i = 0; i < 4; ++i) {
      Problem p{.ranks = ranks};
      const int hosts = 1 + static_cast<int>(random() % 5);
      for (int rank = 0; rank < ranks; ++rank) p.hosts.push_back(static_cast<int>(random() % hosts));
      if (!VerifyAllreduce(Hierarchical(), p)) return;
    }
  }
}

// Bytes sent between ranks, by pair.
std::map<std::pair<int, int>, int64_t> SentBytes(const Problem& problem) {
  std::map<std::pair<int, int>, int64_t> sent;
  for (int rank = 0; rank < problem.ranks; ++rank) {
    Problem p = problem;
    p.rank = rank;
    const Schedule schedule = Hierarchical().build(p);
    for (const Task& task : schedule.tasks) {
      if (task.kind == TaskKind::kSend) {
        sent[{rank, task.peer}] += schedule.SourcesOf(task)[0].bytes();
      }
    }
  }
  return sent;
}

// One leader per host communicates with other hosts: 2B(g-1)/g leave each of g hosts, and each other rank sends B to
// its leader and receives B.
TEST(collective_hierarchical_sends_between_hosts_only_from_leaders) {
  constexpr int64_t kBytes = 27720 * 128;   // divisible by all numbers of groups
  for (const std::vector<int>& hosts : Placements()) {
    const Problem p{.ranks = static_cast<int>(hosts.size()), .block_bytes = kBytes, .hosts = hosts};
    const auto groups = GroupsOf(hosts, p.ranks);
    const auto count = static_cast<int64_t>(groups.size());
    std::vector<int> leader(p.ranks);
    for (const auto& group : groups) {
      for (int rank : group) leader[rank] = group[0];
    }
    std::map<int, int64_t> out;
    int64_t within_bytes = 0;
    for (const auto& [pair, bytes] : SentBytes(p)) {
      const auto [from, to] = pair;
      if (leader[from] == leader[to]) {
        within_bytes += bytes;
        continue;
      }
      CHECK_EQ(from, leader[from]);
      CHECK_EQ(to, leader[to]);
      out[from] += bytes;
    }
    for (const auto& group : groups) CHECK_EQ(out[group[0]], 2 * kBytes * (count - 1) / count);
    CHECK_EQ(within_bytes, 2 * kBytes * (p.ranks - count));
  }
}

// One pipeline stage (lane) holds at most half of the limit (memory_limits.h), in any order of execution.
TEST(collective_hierarchical_stages_fit_into_the_memory_limit) {
  constexpr int64_t kChunkBytes = 1 << 20;
  for (const std::vector<int>& hosts : Placements()) {
    for (const bool encoded : {false, true}) {
      Problem p{.ranks = static_cast<int>(hosts.size()), .block_bytes = 64 << 20,
                .chunk_bytes = kChunkBytes, .encoded = encoded, .hosts = hosts};
      for (p.rank = 0; p.rank < p.ranks; ++p.rank) {
        const Schedule schedule = Hierarchical().build(p);
        std::map<int32_t, int64_t> held;
        for (const Task& task : schedule.tasks) {
          const Space to = task.dst.space;
          const bool temporary = to == Space::kScratch || to == Space::kCode;
          if (task.kind != TaskKind::kSend && temporary) held[task.lane] += task.dst.bytes();
        }
        const int64_t room = LimitsOf(schedule, kChunkBytes).bound_bytes / 2;
        // The tolerance covers the alignment of chunks.
        for (const auto& [lane, bytes] : held) {
          if (!CHECK(bytes <= room + room / 100)) return;
        }
      }
    }
  }
}

TEST(collective_hierarchical_on_one_host_encodes_nothing) {
  const Schedule schedule = Hierarchical().build(
      {.rank = 0, .ranks = 3, .block_bytes = 1 << 20, .encoded = true, .hosts = {0, 0, 0}});
  CHECK(schedule.code.empty());
  CHECK_EQ(schedule.SentBytes(), 2 << 20);
}

TEST(collective_forest_has_a_tree_per_host) {
  const std::vector<int> hosts = {0, 0, 1, 0, 0, 1, 0};
  const Forest forest(hosts, 7);
  CHECK(forest.roots == std::vector<int>({0, 2}));
  CHECK(forest.children[0] == std::vector<int>({1, 3, 4, 6}));
  CHECK(forest.children[2] == std::vector<int>({5}));
  CHECK(forest.parents == std::vector<int>({-1, 0, -1, 0, 0, 2, 0}));
  const std::vector<int> order = InOrderOfGroups({.ranks = 7, .hosts = hosts});
  CHECK(order == std::vector<int>({0, 1, 3, 4, 6, 2, 5}));
  CHECK_EQ(Forest({}, 3).roots.size(), 3);
}

}  // namespace
}  // namespace jaxccomp
