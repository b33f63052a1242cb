// Every algorithm of the table, on many team sizes, against the definition of its collective.

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "check.h"
#include "collective/algorithm.h"
#include "collective/check/oracle.h"
#include "collective/schedule.h"
#include "collective_cases.h"

namespace jaxccomp {
namespace {

using testing::Build;
using testing::CheckMemory;
using testing::CheckNoHazard;
using testing::Find;
using testing::Ranks;
using testing::kSizes;
using testing::Roots;
using testing::Size;
using testing::Verify;
using testing::VerifyAllreduce;

bool GivesResiduals(Collective c) {
  return c == Collective::kAllreduce || c == Collective::kReduceScatter;
}

bool HasUniformBlocks(Collective c) {
  return c <= Collective::kAlltoall || c == Collective::kScan || c == Collective::kExscan;
}

// Checks all algorithms of one collective on all team sizes. `each` is called with every outcome.
void VerifyAll(Collective c,
               const std::function<void(const Algorithm&, const Problem&, const Outcome&)>& each =
                   nullptr) {
  for (const Algorithm& algorithm : AlgorithmTable()) {
    if (algorithm.collective != c) continue;
    const bool line = c == Collective::kScan || c == Collective::kExscan;
    const bool packs = algorithm.name == "bruck" ||
                       (algorithm.name == "binomial" &&
                        (c == Collective::kGather || c == Collective::kScatter));
    for (int ranks : Ranks()) {
      for (const Size& size : kSizes) {
        if (ranks > 8 && !size.many_ranks) continue;
        if (packs && ranks > 8 && size.block_bytes > 10000) continue;  // hundreds of chunks
        for (int root : Roots(algorithm, ranks)) {
          for (int variant = 0; variant < 128; ++variant) {
            const bool shared_memory = variant & 2;
            Problem p{.ranks = ranks,
                      .root = root,
                      .block_bytes = size.block_bytes,
                      .chunk_bytes = size.chunk_bytes,
                      .encoded = (variant & 1) != 0,
                      .bounded = (variant & 64) != 0,
                      .exact = (variant & 32) != 0,
                      .feedback = (variant & 16) != 0,
                      .reverse = (variant & 4) != 0,
                      .multi_slot = (variant & 8) != 0};
            if (shared_memory && !MayShareMemory(c)) continue;
            if (p.reverse && !line) continue;
            if (p.feedback && !(p.encoded && GivesResiduals(c))) continue;
            if (p.multi_slot && !packs) continue;
            if (p.exact && (!p.encoded || p.feedback || p.multi_slot)) continue;
            if (p.bounded && !(p.encoded && !p.exact && Info(c).reduces)) continue;
            Outcome outcome;
            if (!Verify(algorithm, p, shared_memory, &outcome)) return;
            if (each != nullptr) each(algorithm, p, outcome);
          }
        }
      }
    }
  }
}

// Over all ranks, each byte that is forwarded unchanged is encoded once.
void CheckEncodedBytes(const Algorithm& algorithm, const Problem& p, const Outcome& outcome) {
  int64_t expected_bytes = 0;
  if (p.bounded && algorithm.sends_partial) return;   // most of these messages are not encoded
  if (p.encoded && p.ranks > 1) {
    switch (algorithm.collective) {
      case Collective::kBcast:
        expected_bytes = p.block_bytes * (algorithm.name == "chain_recoded" ? p.ranks - 1 : 1);
        break;
      case Collective::kAllgather: expected_bytes = p.ranks * p.block_bytes; break;
      case Collective::kAllreduce:
        if (algorithm.name == "recursive_doubling" || algorithm.name == "hierarchical") return;
        expected_bytes = p.ranks * p.block_bytes;
        break;
      case Collective::kReduce:
      case Collective::kGather:
      case Collective::kScatter: expected_bytes = (p.ranks - 1) * p.block_bytes; break;
      case Collective::kReduceScatter:
      case Collective::kAlltoall:
        expected_bytes = p.block_bytes * p.ranks * (p.ranks - 1);
        break;
      default: return;
    }
  }
  CHECK_EQ(outcome.encoded_bytes, expected_bytes);
}

// A rank does not decode its own values if they are sent unchanged.
void CheckDecodedBytes(const Algorithm& algorithm, const Problem& p, const Outcome& outcome) {
  const int64_t others = p.ranks - 1;
  int64_t expected_bytes = 0;
  if (p.encoded && p.ranks > 1) {
    switch (algorithm.collective) {
      case Collective::kBcast: expected_bytes = others * p.block_bytes; break;
      case Collective::kAllgather: expected_bytes = p.ranks * others * p.block_bytes; break;
      case Collective::kAllreduce:
        if (algorithm.name != "ring" && algorithm.name != "two_shot") return;
        expected_bytes = others * p.block_bytes;
        break;
      default: return;
    }
    const int64_t own_bytes =
        algorithm.collective == Collective::kAllgather ? p.ranks * p.block_bytes : p.block_bytes;
    if (!p.exact) expected_bytes += own_bytes;
  }
  CHECK_EQ(outcome.decoded_bytes, expected_bytes);
}

void CheckCosts(const Algorithm& algorithm, const Problem& p, const Outcome& outcome) {
  CheckEncodedBytes(algorithm, p, outcome);
  CheckDecodedBytes(algorithm, p, outcome);
  CheckMemory(algorithm, p, outcome);
}

TEST(collective_bcast_algorithms_match_the_definition) { VerifyAll(Collective::kBcast, CheckCosts); }
TEST(collective_allreduce_algorithms_match_the_definition) { VerifyAll(Collective::kAllreduce, CheckCosts); }
TEST(collective_reduce_algorithms_match_the_definition) { VerifyAll(Collective::kReduce, CheckCosts); }
TEST(collective_allgather_algorithms_match_the_definition) { VerifyAll(Collective::kAllgather, CheckCosts); }
TEST(collective_gather_algorithms_match_the_definition) { VerifyAll(Collective::kGather, CheckCosts); }
TEST(collective_scatter_algorithms_match_the_definition) { VerifyAll(Collective::kScatter, CheckCosts); }
TEST(collective_reduce_scatter_algorithms_match_the_definition) { VerifyAll(Collective::kReduceScatter, CheckCosts); }
TEST(collective_alltoall_algorithms_match_the_definition) { VerifyAll(Collective::kAlltoall, CheckCosts); }
TEST(collective_scan_algorithms_match_the_definition) { VerifyAll(Collective::kScan, CheckMemory); }
TEST(collective_exscan_algorithms_match_the_definition) { VerifyAll(Collective::kExscan, CheckMemory); }
TEST(collective_parameter_server_works_with_any_number_of_partitions) {
  const Algorithm& algorithm = Find(Collective::kAllreduce, "parameter_server");
  for (int ranks : Ranks()) {
    for (int partitions : {1, 2, ranks, 2 * ranks + 1}) {
      const Problem p{.ranks = ranks, .partitions = partitions, .rotation = partitions + 5};
      if (!VerifyAllreduce(algorithm, p)) return;
    }
  }
  // Small blocks are not cut; the server changes from operation to operation.
  for (int rotation : {0, 1, 2, 3}) {
    const Schedule schedule = algorithm.build(
        {.rank = 1, .ranks = 3, .block_bytes = 1000, .rotation = rotation});
    CHECK_EQ(schedule.Peers(), rotation % 3 == 1 ? 2 : 1);
  }
}

TEST(collective_v_variants_match_the_definition) {
  for (const Algorithm& algorithm : AlgorithmTable()) {
    const Collective c = algorithm.collective;
    const bool matrix = c == Collective::kAlltoallv;
    if (!matrix && c != Collective::kAllgatherv && c != Collective::kGatherv &&
        c != Collective::kScatterv && c != Collective::kReduceScatterv) {
      continue;
    }
    for (int ranks : Ranks()) {
      for (int root : Roots(algorithm, ranks)) {
        for (bool encoded : {false, true}) {
          Problem p{.ranks = ranks, .root = root, .chunk_bytes = 256, .encoded = encoded};
          std::mt19937 random(ranks);
          for (int i = 0; i < (matrix ? ranks * ranks : ranks); ++i) {
            p.counts.push_back(random() % 3 == 0 ? 0 : random() % 2000);
          }
          if (!Verify(algorithm, p, /*shared_memory=*/false)) return;
        }
      }
    }
  }
}

TEST(collective_ragged_alltoall_matches_the_definition) {
  const Algorithm& algorithm = Find(Collective::kRaggedAlltoall, "direct");
  for (int ranks : Ranks()) {
    for (bool encoded : {false, true}) {
      std::mt19937 random(ranks);
      std::vector<std::vector<int64_t>> bytes(ranks, std::vector<int64_t>(ranks));
      for (auto& row : bytes) {
        for (int64_t& size : row) size = random() % 3 == 0 ? 0 : random() % 200 * 4;
      }
      // Packed by peer in Input. Output has a gap of 12 bytes that must not be written.
      World world;
      world.unit = 4;
      std::vector<Problem> problems;
      for (int rank = 0; rank < ranks; ++rank) {
        Problem p{.rank = rank, .ranks = ranks, .chunk_bytes = 128, .encoded = encoded};
        int64_t sent = 0, landed = 12;
        for (int peer = 0; peer < ranks; ++peer) {
          p.send_offsets.push_back(sent);
          p.send_sizes.push_back(bytes[rank][peer]);
          p.recv_offsets.push_back(landed);
          p.recv_sizes.push_back(bytes[peer][rank]);
          sent += bytes[rank][peer];
          landed += bytes[peer][rank] + 12;
        }
        world.schedules.push_back(algorithm.build(p));
        world.input_bytes.push_back({sent});
        world.output_bytes.push_back({landed});
        problems.push_back(p);
      }
      if (!CheckNoHazard(world, "ragged_alltoall")) return;
      Expressions expressions;
      const Outcome outcome = RunSymbols(world, expressions, 1);
      if (!CHECK_EQ(outcome.error, "")) return;
      for (int rank = 0; rank < ranks; ++rank) {
        Block expected(outcome.output[rank][0].size());
        for (int peer = 0; peer < ranks; ++peer) {
          const int place = static_cast<int>(problems[peer].send_offsets[rank] / 4);
          const int value = expressions.Operand(peer);
          for (int64_t i = 0; i < bytes[peer][rank] / 4; ++i) {
            Cell& cell = expected[problems[rank].recv_offsets[peer] / 4 + i];
            cell = {0, place + static_cast<int>(i), value};
            const int given = outcome.output[rank][0][&cell - expected.data()].value;
            if (encoded && peer != rank && expressions.IsCodeOf(given, value)) cell.value = given;
          }
        }
        if (!CHECK(outcome.output[rank][0] == expected)) return;
      }
    }
  }
}

TEST(collective_permute_matches_the_definition) {
  const Algorithm& algorithm = Find(Collective::kPermute, "direct");
  for (int ranks : Ranks()) {
    std::vector<std::vector<std::pair<int, int>>> cases(5);
    for (int rank = 0; rank < ranks; ++rank) {
      cases[1].push_back({rank, (rank + 1) % ranks});      // a ring; on one rank, to itself
      cases[2].push_back({rank, ranks - 1 - rank});        // pairs; the middle rank with itself
      if (rank % 3 == 0) cases[3].push_back({rank, (rank + 2) % ranks});  // holes
      cases[4].push_back({0, rank});                       // one source
    }
    for (const auto& pairs : cases) {
      for (bool encoded : {false, true}) {
        for (const Size& size : kSizes) {
          const Problem p{.ranks = ranks,
                          .block_bytes = size.block_bytes,
                          .chunk_bytes = size.chunk_bytes,
                          .encoded = encoded,
                          .pairs = pairs};
          if (!Verify(algorithm, p, /*shared_memory=*/false)) return;
        }
      }
    }
  }
}

TEST(collective_sendrecv_shifts_values_along_a_line) {
  constexpr int kRankCount = 5;
  // A shift without wrap-around: the end ranks have only one peer.
  World world;
  for (int rank = 0; rank < kRankCount; ++rank) {
    const int destination = rank + 1 < kRankCount ? rank + 1 : -1;
    const Problem p{.rank = rank,
                    .ranks = kRankCount,
                    .block_bytes = 300,
                    .chunk_bytes = 64,
                    .pairs = {{rank, destination}, {rank - 1, rank}}};
    world.schedules.push_back(Find(Collective::kSendrecv, "direct").build(p));
    world.input_bytes.push_back({300});
    world.output_bytes.push_back({300});
  }
  Expressions expressions;
  const Outcome outcome = RunSymbols(world, expressions, 1);
  if (!CHECK_EQ(outcome.error, "")) return;
  for (int rank = 0; rank < kRankCount; ++rank) {
    for (const Cell& cell : outcome.output[rank][0]) {
      CHECK_EQ(cell.value, rank == 0 ? -1 : expressions.Operand(rank - 1));
    }
  }
}

TEST(collective_send_and_recv_match_beside_a_sendrecv) {
  // Rank 0 sends to rank 1; rank 2 sends to itself in one sendrecv.
  Problem p{.ranks = 3, .block_bytes = 128, .encoded = true};
  World world;
  p.pairs = {{0, 1}};
  world.schedules.push_back(Find(Collective::kSend, "direct").build(p));
  p.rank = 1;
  world.schedules.push_back(Find(Collective::kRecv, "direct").build(p));
  p.rank = 2;
  p.pairs = {{2, 2}, {2, 2}};
  world.schedules.push_back(Find(Collective::kSendrecv, "direct").build(p));
  world.input_bytes = world.output_bytes = {{128}, {128}, {128}};
  CHECK_EQ(world.schedules[2].tasks.size(), 1);
  Expressions expressions;
  const Outcome outcome = RunSymbols(world, expressions, 1);
  if (!CHECK_EQ(outcome.error, "")) return;
  CHECK_EQ(outcome.output[0][0][0].value, -1);
  CHECK(expressions.IsCodeOf(outcome.output[1][0][1].value, expressions.Operand(0)));
  CHECK_EQ(outcome.output[2][0][1].value, expressions.Operand(2));
}

TEST(collective_barrier_waits_for_every_rank) {
  const Algorithm& algorithm = Find(Collective::kBarrier, "dissemination");
  for (int ranks : Ranks()) {
    const World world = Build(algorithm, Problem{.ranks = ranks}, false);
    Expressions expressions;
    CHECK_EQ(RunSymbols(world, expressions, 1).error, "");
    // No rank finishes while another is missing.
    for (int missing = 0; missing < ranks; ++missing) {
      World partial = world;
      partial.schedules[missing] = Schedule();
      const Outcome outcome = RunSymbols(partial, expressions, 1);
      for (int rank = 0; rank < ranks; ++rank) CHECK(rank == missing || !outcome.finished[rank]);
    }
  }
}

TEST(collective_schedules_of_one_rank_only_copy) {
  for (const Algorithm& algorithm : AlgorithmTable()) {
    if (!HasUniformBlocks(algorithm.collective)) continue;
    const Schedule schedule =
        algorithm.build(Problem{.block_bytes = 1000, .chunk_bytes = 128, .encoded = true});
    for (const Task& task : schedule.tasks) CHECK(task.kind == TaskKind::kCopy);
    CHECK_EQ(schedule.tasks.empty(), algorithm.collective == Collective::kExscan);
    CHECK(schedule.code.empty() && schedule.scratch.empty());
  }
}

}  // namespace
}  // namespace jaxccomp
