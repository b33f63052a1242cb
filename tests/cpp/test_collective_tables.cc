// The table of algorithms, the choice of "auto", the cost of schedules, and their rank arithmetic.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "collective/algorithm.h"
#include "collective/defaults.h"
#include "collective/patterns/binomial.h"
#include "collective/patterns/split.h"
#include "collective/schedule.h"
#include "collective_cases.h"

namespace jaxccomp {
namespace {

using testing::Find;
using testing::Ranks;

// Each row names an existing algorithm and is the first match for some problem. The last row of each collective matches
// all problems.
TEST(collective_default_rows_are_reachable_and_complete) {
  std::vector<int> chosen(DefaultTable().size());
  const std::vector<int> pairs = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8};
  for (int i = 0; i < kCollectiveCount; ++i) {
    const Collective collective = CollectiveTable()[i].id;
    for (int ranks : {1, 2, 4, 6, 8, 9, 16, 18}) {
      for (int64_t bytes : {0, 256, 4096, 8192, 32 << 10, 1 << 20, 2 << 20, 4 << 20}) {
        for (int flags = 0; flags < 16; ++flags) {
          Problem p{.ranks = ranks,
                    .block_bytes = bytes,
                    .encoded = (flags & 1) != 0,
                    .wide = (flags & 2) != 0,
                    .multi_slot = (flags & 4) != 0};
          if ((flags & 8) != 0) p.hosts.assign(pairs.begin(), pairs.begin() + ranks);
          for (size_t row = 0; row < chosen.size(); ++row) {
            if (DefaultTable()[row].collective != collective || !DefaultTable()[row].Holds(p)) continue;
            ++chosen[row];
            CHECK(DefaultAlgorithm(collective, p) == DefaultTable()[row].algorithm);
            break;
          }
        }
      }
    }
  }
  for (size_t row = 0; row < chosen.size(); ++row) {
    const DefaultRow& each = DefaultTable()[row];
    CHECK(chosen[row] > 0);
    CHECK_OK(SelectAlgorithm(each.collective, each.algorithm, {}));
    const bool last = row + 1 == chosen.size() ||
                      DefaultTable()[row + 1].collective != each.collective;
    CHECK_EQ(each.ToString() == "otherwise", last);
  }
  const auto described = [](Collective collective, std::string_view name) {
    return DescribeDefault(**SelectAlgorithm(collective, name, {}));
  };
  CHECK_EQ(described(Collective::kBcast, "binomial"), "default up to 32 KiB");
  CHECK_EQ(described(Collective::kAllreduce, "one_shot"),
           "default with a codec on 2 ranks; for half types and codecs up to 8 ranks and nB = 64 KiB; "
           "up to 4 ranks and 4 KiB");
  CHECK_EQ(described(Collective::kAllgather, "bruck"),
           "default without a codec from 9 ranks up to 4 KiB");
  CHECK_EQ(described(Collective::kAllreduce, "ring"),
           "default up to 16 ranks above 2 MiB where each rank has a host of its own");
  CHECK_EQ(described(Collective::kAllreduce, "parameter_server"), "");
  CHECK_EQ(described(Collective::kSend, "direct"), "");
}

TEST(collective_table_names_parse_and_auto_covers_every_problem) {
  for (int i = 0; i < kCollectiveCount; ++i) {
    const CollectiveInfo& info = CollectiveTable()[i];
    CHECK_EQ(static_cast<int>(info.id), i);
    const Result<Collective> parsed = ParseCollective(info.name);
    if (CHECK_OK(parsed)) CHECK(parsed.value() == info.id);
    // "auto" finds an algorithm for every problem.
    for (int ranks : Ranks()) {
      for (int64_t bytes : {int64_t{0}, int64_t{5000}, int64_t{1} << 20, int64_t{1} << 40}) {
        for (int flags = 0; flags < 8; ++flags) {
          const Problem p{.ranks = ranks,
                          .block_bytes = bytes,
                          .encoded = (flags & 1) != 0,
                          .wide = (flags & 2) != 0,
                          .multi_slot = (flags & 4) != 0};
          const auto chosen = SelectAlgorithm(info.id, "auto", p);
          if (CHECK_OK(chosen)) CHECK(chosen.value()->collective == info.id);
        }
      }
    }
  }
  const Result<Collective> unknown = ParseCollective("brodcast");
  CHECK(!unknown.ok() && unknown.status().message().find("bcast") != std::string::npos);
}

TEST(collective_auto_selects_algorithms_by_size_and_ranks) {
  const auto name = [](Collective c, const Problem& p) {
    return std::string((*SelectAlgorithm(c, "auto", p))->name);
  };
  const Collective allreduce = Collective::kAllreduce;
  CHECK_EQ(name(allreduce, {.ranks = 4, .block_bytes = 4096}), "one_shot");
  CHECK_EQ(name(allreduce, {.ranks = 4, .block_bytes = 4160}), "two_shot");
  CHECK_EQ(name(allreduce, {.ranks = 16, .block_bytes = 32768}), "recursive_doubling");
  CHECK_EQ(name(allreduce, {.ranks = 16, .block_bytes = 32768, .wide = true}), "two_shot");
  CHECK_EQ(name(allreduce, {.ranks = 8, .block_bytes = 8192, .wide = true}), "one_shot");
  CHECK_EQ(name(allreduce, {.ranks = 8, .block_bytes = 8256, .wide = true}), "two_shot");
  const int64_t large = int64_t{2} << 20;
  CHECK_EQ(name(allreduce, {.ranks = 2, .block_bytes = large, .encoded = true}), "one_shot");
  CHECK_EQ(name(allreduce, {.ranks = 4, .block_bytes = large, .hosts = {0, 0, 1, 1}}),
           "hierarchical");
  CHECK_EQ(name(allreduce, {.ranks = 4, .block_bytes = large, .hosts = {0, 1, 2, 3}}), "two_shot");
  CHECK_EQ(name(allreduce, {.ranks = 4, .block_bytes = large, .hosts = {5, 5, 5, 5}}), "two_shot");
  CHECK_EQ(name(allreduce, {.ranks = 4, .block_bytes = 65536, .hosts = {0, 0, 1, 1}}), "two_shot");
  CHECK_EQ(name(Collective::kBcast, {.ranks = 16, .block_bytes = 32768}), "binomial");
  CHECK_EQ(name(Collective::kBcast, {.ranks = 16, .block_bytes = 1 << 20}), "scatter_allgather");
  CHECK_EQ(name(Collective::kBcast, {.ranks = 8, .block_bytes = 1 << 20}), "chain");
  CHECK_EQ(name(Collective::kBcast, {.ranks = 16, .block_bytes = 2 << 20}), "chain");
  CHECK_EQ(name(Collective::kAlltoall, {.ranks = 8, .block_bytes = 256}), "pairwise");
  CHECK_EQ(name(Collective::kAlltoall, {.ranks = 8, .block_bytes = 256, .multi_slot = true}),
           "bruck");
  const auto unknown = SelectAlgorithm(allreduce, "rong", Problem());
  CHECK(!unknown.ok());
  CHECK(unknown.status().code() == Code::kInvalidArgument);
  CHECK_EQ(unknown.status().message(),
           "allreduce has no algorithm \"rong\"; it has auto, two_shot, one_shot, "
           "recursive_doubling, parameter_server, hierarchical, ring");
}

TEST(collective_schedules_send_the_known_number_of_bytes) {
  constexpr int64_t kMiB = 1 << 20;
  const auto sent = [](Collective c, std::string_view name, int rank) {
    return Find(c, name).build({.rank = rank, .ranks = 8, .block_bytes = kMiB}).SentBytes();
  };
  for (int rank = 0; rank < 8; ++rank) {
    CHECK_EQ(sent(Collective::kAllreduce, "ring", rank), 2 * kMiB * 7 / 8);
    CHECK_EQ(sent(Collective::kAllreduce, "two_shot", rank), 2 * kMiB * 7 / 8);
    CHECK_EQ(sent(Collective::kAllreduce, "recursive_doubling", rank), 3 * kMiB);
    CHECK_EQ(sent(Collective::kBcast, "chain", rank), rank == 7 ? 0 : kMiB);
    CHECK_EQ(sent(Collective::kAlltoall, "bruck", rank), 12 * kMiB);
    CHECK_EQ(sent(Collective::kGather, "binomial", 0), 0);
    CHECK_EQ(sent(Collective::kGather, "binomial", 4), 4 * kMiB);
  }
}

// Whether a rank makes, and with Problem::bounded encodes, reductions that are not final.
struct PartialSums {
  bool made = false, encoded = false;
};

PartialSums PartialSumsOf(const Algorithm& algorithm, Problem problem) {
  PartialSums found;
  for (problem.rank = 0; problem.rank < problem.ranks; ++problem.rank) {
    const Schedule schedule = algorithm.build(problem);
    std::vector<Slot> partial;
    for (const Task& task : schedule.tasks) {
      if (task.kind == TaskKind::kMerge && !task.final) partial.push_back(task.dst);
      if (task.kind != TaskKind::kEncode) continue;
      const Slot& source = schedule.SourcesOf(task)[0];
      found.encoded |= std::find(partial.begin(), partial.end(), source) != partial.end();
    }
    found.made |= !partial.empty();
  }
  return found;
}

TEST(collective_sends_partial_flag_matches_the_schedules) {
  for (const Algorithm& algorithm : AlgorithmTable()) {
    if (!Info(algorithm.collective).reduces) {
      CHECK(!algorithm.sends_partial);
      continue;
    }
    if (algorithm.collective == Collective::kReduceScatterv) continue;   // the same as reduce_scatter
    bool made = false;   // a few ranks may need none
    for (int ranks : Ranks()) {
      if (ranks <= 2) continue;
      Problem p{.ranks = ranks, .block_bytes = 4096, .chunk_bytes = 256};
      for (int rank = 0; rank < ranks; ++rank) p.hosts.push_back(rank / 2);
      made |= PartialSumsOf(algorithm, p).made;
      p.encoded = true;
      p.bounded = true;
      CHECK(!PartialSumsOf(algorithm, p).encoded);
    }
    CHECK_EQ(made, algorithm.sends_partial);
  }
}

TEST(collective_chunk_size_rises_for_huge_blocks) {
  // A chunk size that would cut 1 TiB into 2^34 pieces is raised. Sizes are 64-bit.
  const Problem p{.rank = 1, .ranks = 3, .block_bytes = (int64_t{1} << 40) + 100,
                  .chunk_bytes = 64};
  const Schedule schedule = Find(Collective::kBcast, "chain").build(p);
  CHECK(schedule.tasks.size() <= 2 * kMaxChunks);
  CHECK_EQ(schedule.SentBytes(), p.block_bytes);
}

TEST(collective_schedule_prints_its_tasks) {
  const Schedule schedule = Find(Collective::kBcast, "chain")
                                .build({.rank = 1, .ranks = 3, .block_bytes = 100, .encoded = true});
  CHECK_EQ(schedule.ToString(),
           "0 recv code0[0,100) from 0 tag 0\n"
           "1 send code0[0,100) to 2 tag 0 after 0\n"
           "2 decode output0[0,100) <- code0[0,100) after 0\n");
}

TEST(collective_parts_cover_a_block_without_overlap) {
  for (int parts : Ranks()) {
    for (int64_t bytes : {0, 1, 64, 100, 4096, 100000}) {
      CHECK_EQ(PartBegin(bytes, 0, parts), 0);
      CHECK_EQ(PartBegin(bytes, parts, parts), bytes);
      for (int i = 0; i < parts; ++i) {
        const int64_t begin = PartBegin(bytes, i, parts), end = PartBegin(bytes, i + 1, parts);
        CHECK(begin <= end && (begin % kBlockAlign == 0 || begin == bytes));
        CHECK(end - begin <= bytes / parts + 2 * kBlockAlign);
      }
    }
  }
  for (int ranks : Ranks()) {
    int edges = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const BinomialNode node(rank, ranks / 2, ranks);
      for (int distance = 1; distance < node.limit(); distance *= 2) {
        const int child = node.virtual_rank + distance;
        if (child >= ranks) break;
        ++edges;
        const BinomialNode below(node.RankOf(child), ranks / 2, ranks);
        CHECK_EQ(below.parent(), node.virtual_rank);
        CHECK_EQ(below.SubtreeEnd(), node.ChildEnd(distance));
      }
    }
    CHECK_EQ(edges, ranks - 1);
  }
}

}  // namespace
}  // namespace jaxccomp
