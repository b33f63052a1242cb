// Every algorithm of the table, on every shape of world, against the definition of its collective.

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "check.h"
#include "collective/algorithm.h"
#include "collective/patterns/binomial.h"
#include "collective/patterns/hosts.h"
#include "collective/patterns/split.h"
#include "collective/schedule.h"
#include "oracle.h"

namespace jaxccomp {
namespace {

using testing::Cell;
using testing::Expressions;
using testing::FindHazard;
using testing::Oracle;
using testing::Outcome;
using testing::World;

const Algorithm& Find(Collective c, std::string_view name) {
  return **SelectAlgorithm(c, name, Problem());
}

std::string Describe(const Algorithm& algorithm, const Problem& p, bool shared_memory) {
  return std::string(Info(algorithm.collective).name) + " " + std::string(algorithm.name) +
         " ranks " + std::to_string(p.ranks) + " root " + std::to_string(p.root) + " bytes " +
         std::to_string(p.block_bytes) + " chunk " + std::to_string(p.chunk_bytes) +
         (p.coded ? " coded" : "") + (p.feedback ? " feedback" : "") +
         (p.reverse ? " reverse" : "") +
         (p.multi_slot ? " multi_slot" : "") + (shared_memory ? " shared memory" : "");
}

int64_t BytesBetween(const Problem& p, int source, int destination) {
  return p.counts.empty() ? p.block_bytes : p.counts[source * p.ranks + destination];
}

int64_t BytesOf(const Problem& p, int block) {
  return p.counts.empty() ? p.block_bytes : p.counts[block];
}

std::vector<int64_t> BlockSizes(Collective c, const Problem& p, int rank, bool output) {
  const Blocks blocks = output ? Info(c).output : Info(c).input;
  std::vector<int64_t> sizes;
  for (int i = 0; i < (blocks == Blocks::kOne ? 1 : p.ranks); ++i) {
    if (c == Collective::kAlltoallv) {
      sizes.push_back(output ? BytesBetween(p, i, rank) : BytesBetween(p, rank, i));
    } else {
      sizes.push_back(BytesOf(p, blocks == Blocks::kOne ? rank : i));
    }
  }
  return sizes;
}

// What the Output block `block` of `rank` must hold: whose operands in which order (any
// rotation of it, where `rotated`), and which of their blocks. Empty: nothing is written.
struct Expected {
  std::vector<int> leaves;
  int from_block = 0;
  bool rotated = false;
  bool exact = false;      // the operand itself, never through a codec
  bool same = false;       // identical on all ranks
};

std::vector<int> InOrderOfHosts(const Problem& p) {
  std::vector<int> order;
  for (const auto& members : Hosts(p.hosts, 0, p.ranks).members) {
    order.insert(order.end(), members.begin(), members.end());
  }
  return order;
}

Expected Expect(const Algorithm& algorithm, const Problem& p, int rank, int block) {
  std::vector<int> all(p.ranks);
  std::iota(all.begin(), all.end(), 0);
  const bool ring = algorithm.name == "ring";
  const bool by_host = algorithm.name == "hierarchical";
  const bool from_all = !Info(algorithm.collective).rooted || rank == p.root;
  switch (algorithm.collective) {
    case Collective::kBcast:
      return {.leaves = {p.root}, .same = algorithm.name != "chain_recoded" || !p.coded};
    case Collective::kAllreduce:
      if (by_host) all = InOrderOfHosts(p);
      return {.leaves = all, .rotated = ring, .same = true};
    case Collective::kReduce:
      if (algorithm.name == "binomial") std::rotate(all.begin(), all.begin() + p.root, all.end());
      return {.leaves = from_all ? all : std::vector<int>()};
    case Collective::kAllgather:
    case Collective::kAllgatherv:
      return {.leaves = {block}, .same = true};
    case Collective::kGather:
    case Collective::kGatherv:
      if (!from_all) return {};
      return {.leaves = {block}, .exact = block == rank};
    case Collective::kScatter:
    case Collective::kScatterv:
      return {.leaves = {p.root}, .from_block = rank, .exact = rank == p.root};
    case Collective::kReduceScatter:
    case Collective::kReduceScatterv:
      return {.leaves = all, .from_block = rank, .rotated = ring};
    case Collective::kAlltoall:
    case Collective::kAlltoallv:
      return {.leaves = {block}, .from_block = rank, .exact = block == rank};
    case Collective::kScan:
    case Collective::kExscan: {
      const int place = p.reverse ? p.ranks - 1 - rank : rank;
      if (p.reverse) std::reverse(all.begin(), all.end());
      all.resize(place + (algorithm.collective == Collective::kScan ? 1 : 0));
      return {.leaves = all};
    }
    case Collective::kPermute:
      for (const auto& [source, destination] : p.pairs) {
        if (destination == rank) return {.leaves = {source}, .exact = source == rank};
      }
      return {};
    default:
      return {};
  }
}

World Build(const Algorithm& algorithm, const Problem& problem, bool shared_memory) {
  World world;
  world.shared_memory = shared_memory;
  world.chunk_bytes = ChunkBytes(problem.block_bytes, problem.chunk_bytes);
  for (int rank = 0; rank < problem.ranks; ++rank) {
    Problem p = problem;
    p.rank = rank;
    world.schedules.push_back(algorithm.build(p));
    world.input_bytes.push_back(BlockSizes(algorithm.collective, p, rank, false));
    world.output_bytes.push_back(BlockSizes(algorithm.collective, p, rank, true));
  }
  return world;
}

bool CheckNoHazard(const World& world, const std::string& what) {
  bool ok = true;
  for (const Schedule& schedule : world.schedules) {
    const std::string hazard = FindHazard(schedule, world.shared_memory);
    if (hazard.empty()) continue;
    ok = CHECK_EQ(what + ": " + hazard, "");
    break;
  }
  return ok;
}

bool SameOrder(std::vector<int> leaves, const Expected& expected) {
  if (expected.rotated && leaves.size() == expected.leaves.size()) {
    std::rotate(leaves.begin(), std::find(leaves.begin(), leaves.end(), 0), leaves.end());
  }
  return leaves == expected.leaves;
}

// Results are the reduction of the operands less all losses: whatever was encoded on the way to the
// result was lost on one rank, once.
bool LossesAddUp(const Outcome& outcome, const Expressions& expressions) {
  for (size_t i = 0; i < outcome.output[0][0].size(); ++i) {
    std::vector<int> lost;
    for (const auto& places : outcome.lost) {
      lost.insert(lost.end(), places[i].begin(), places[i].end());
    }
    std::vector<int> encoded = expressions.Encoded(outcome.output[0][0][i].value);
    std::sort(lost.begin(), lost.end());
    std::sort(encoded.begin(), encoded.end());
    if (lost != encoded) return false;
  }
  return true;
}

// Builds, checks for hazards, runs and compares one problem; false after a failure.
bool Verify(const Algorithm& algorithm, const Problem& problem, bool shared_memory,
            Outcome* outcome_out = nullptr) {
  const std::string what = Describe(algorithm, problem, shared_memory);
  const World world = Build(algorithm, problem, shared_memory);
  if (!CheckNoHazard(world, what)) return false;
  Expressions expressions;
  const Outcome outcome = Oracle(world, expressions, /*seed=*/problem.ranks + 7).Run();
  if (!outcome.error.empty()) return CHECK_EQ(what + ": " + outcome.error, "");
  for (int rank = 0; rank < problem.ranks; ++rank) {
    for (size_t b = 0; b < outcome.output[rank].size(); ++b) {
      const Expected expected = Expect(algorithm, problem, rank, b);
      if (expected.leaves.empty() && shared_memory) continue;  // what the operand left there
      const testing::Block& cells = outcome.output[rank][b];
      for (size_t i = 0; i < cells.size(); ++i) {
        const Cell& cell = cells[i];
        bool ok = true;
        if (expected.leaves.empty()) {
          ok = cell.value < 0;
        } else if (cell.value < 0) {
          ok = false;
        } else {
          ok = cell.block == expected.from_block && cell.place == static_cast<int>(i) &&
               SameOrder(expressions.Leaves(cell.value), expected);
          if (expected.exact) ok = ok && expressions.IsOperand(cell.value);
          if (expected.same) ok = ok && cell == outcome.output[0][b][i];
          const Collective c = algorithm.collective;
          if (Info(c).reduces && c != Collective::kScan && c != Collective::kExscan &&
              problem.ranks > 1) {
            ok = ok && expressions.IsFinal(cell.value);
          }
          if (!problem.coded && expected.leaves.size() == 1) {
            ok = ok && expressions.IsOperand(cell.value);
          }
        }
        if (ok) continue;
        return CHECK_EQ(what + ": rank " + std::to_string(rank) + " block " + std::to_string(b) +
                            " is wrong at " + std::to_string(i * kBlockAlign) + "\n" +
                            world.schedules[rank].ToString(),
                        "");
      }
    }
  }
  if (problem.feedback && !LossesAddUp(outcome, expressions)) {
    return CHECK_EQ(what + ": losses are not counted once each", "");
  }
  if (outcome_out != nullptr) *outcome_out = outcome;
  return true;
}

constexpr int kRanks[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};

struct Size {
  int64_t block_bytes, chunk_bytes;
  bool many_ranks;  // also tried with more than 8 ranks
};
constexpr Size kSizes[] = {
    {0, 64, true},     {64, 64, false},      {100, 64, true},          {4096, 256, true},
    {4096, 64, false}, {100000, 4096, true}, {100000, 1 << 20, false}, {2000, 0, false}};

std::vector<int> Roots(const Algorithm& algorithm, int ranks) {
  std::vector<int> roots = {0};
  if (!Info(algorithm.collective).rooted || ranks == 1) return roots;
  if (ranks > 5) return {0, ranks / 2, ranks - 1};
  roots.resize(ranks);
  std::iota(roots.begin(), roots.end(), 0);
  return roots;
}

bool MayShareMemory(Collective c) {
  return c == Collective::kBcast || c == Collective::kAllreduce || c == Collective::kReduce ||
         c == Collective::kScan || c == Collective::kExscan;
}

bool HasUniformBlocks(Collective c) {
  return c <= Collective::kAlltoall || c == Collective::kScan || c == Collective::kExscan;
}

// All algorithms of one collective over all worlds; `each` sees every outcome.
void VerifyAll(Collective c,
               const std::function<void(const Algorithm&, const Problem&, const Outcome&)>& each =
                   nullptr) {
  for (const Algorithm& algorithm : AlgorithmTable()) {
    if (algorithm.collective != c) continue;
    const bool line = c == Collective::kScan || c == Collective::kExscan;
    const bool packs = algorithm.name == "bruck" ||
                       (algorithm.name == "binomial" &&
                        (c == Collective::kGather || c == Collective::kScatter));
    for (int ranks : kRanks) {
      for (const Size& size : kSizes) {
        if (ranks > 8 && !size.many_ranks) continue;
        if (packs && ranks > 8 && size.block_bytes > 10000) continue;  // chunks by the hundred
        for (int root : Roots(algorithm, ranks)) {
          for (int variant = 0; variant < 32; ++variant) {
            const bool shared_memory = variant & 2;
            Problem p{.ranks = ranks,
                      .root = root,
                      .block_bytes = size.block_bytes,
                      .chunk_bytes = size.chunk_bytes,
                      .coded = (variant & 1) != 0,
                      .feedback = (variant & 16) != 0,
                      .reverse = (variant & 4) != 0,
                      .multi_slot = (variant & 8) != 0};
            if (shared_memory && !MayShareMemory(c)) continue;
            if (p.reverse && !line) continue;
            if (p.feedback && !(p.coded && c == Collective::kAllreduce)) continue;
            if (p.multi_slot && !packs) continue;
            Outcome outcome;
            if (!Verify(algorithm, p, shared_memory, &outcome)) return;
            if (each != nullptr) each(algorithm, p, outcome);
          }
        }
      }
    }
  }
}

// Codec work: each byte that travels unchanged is encoded once over all ranks.
void CheckEncodedBytes(const Algorithm& algorithm, const Problem& p, const Outcome& outcome) {
  int64_t expected_bytes = 0;
  if (p.coded && p.ranks > 1) {
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

// At most 4 chunks per rank that one talks to, whatever the size of the values.
// Where chunks can be cut into as many pieces as the algorithms want.
void CheckMemory(const Algorithm& algorithm, const Problem& p, const Outcome& outcome) {
  if (p.chunk_bytes < 4096) return;
  for (int rank = 0; rank < p.ranks; ++rank) {
    if (outcome.peak_bytes[rank] <= outcome.bound_bytes[rank]) continue;
    CHECK_EQ(Describe(algorithm, p, false) + " rank " + std::to_string(rank) + " holds " +
                 std::to_string(outcome.peak_bytes[rank]) + " of " +
                 std::to_string(outcome.bound_bytes[rank]),
             "");
    return;
  }
}

void CheckCosts(const Algorithm& algorithm, const Problem& p, const Outcome& outcome) {
  CheckEncodedBytes(algorithm, p, outcome);
  CheckMemory(algorithm, p, outcome);
}

TEST(CollectiveBcast) { VerifyAll(Collective::kBcast, CheckCosts); }
TEST(CollectiveAllreduce) { VerifyAll(Collective::kAllreduce, CheckCosts); }
TEST(CollectiveReduce) { VerifyAll(Collective::kReduce, CheckCosts); }
TEST(CollectiveAllgather) { VerifyAll(Collective::kAllgather, CheckCosts); }
TEST(CollectiveGather) { VerifyAll(Collective::kGather, CheckCosts); }
TEST(CollectiveScatter) { VerifyAll(Collective::kScatter, CheckCosts); }
TEST(CollectiveReduceScatter) { VerifyAll(Collective::kReduceScatter, CheckCosts); }
TEST(CollectiveAlltoall) { VerifyAll(Collective::kAlltoall, CheckCosts); }
TEST(CollectiveScan) { VerifyAll(Collective::kScan, CheckMemory); }
TEST(CollectiveExscan) { VerifyAll(Collective::kExscan, CheckMemory); }

// One allreduce on every size, raw, coded and with feedback, and in place or not; false after a
// failure.
bool VerifyAllreduce(const Algorithm& algorithm, Problem p) {
  for (const Size& size : kSizes) {
    p.block_bytes = size.block_bytes;
    p.chunk_bytes = size.chunk_bytes;
    for (int variant = 0; variant < 6; ++variant) {
      p.coded = variant % 3 != 0;
      p.feedback = variant % 3 == 2;
      Outcome outcome;
      if (!Verify(algorithm, p, /*shared_memory=*/variant >= 3, &outcome)) return false;
      CheckMemory(algorithm, p, outcome);
    }
  }
  return true;
}

TEST(CollectiveHosts) {
  const Algorithm& algorithm = Find(Collective::kAllreduce, "hierarchical");
  for (int ranks : kRanks) {
    std::vector<std::vector<int>> layouts(4, std::vector<int>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      layouts[0][rank] = 7;                    // one host
      layouts[1][rank] = rank / 2;             // two each
      layouts[2][rank] = rank % 3;             // round robin
      layouts[3][rank] = rank == 1 ? 5 : 1000 - rank / 4;  // uneven
    }
    for (const auto& hosts : layouts) {
      if (!VerifyAllreduce(algorithm, {.ranks = ranks, .hosts = hosts})) return;
    }
  }
}

TEST(CollectivePartitions) {
  const Algorithm& algorithm = Find(Collective::kAllreduce, "parameter_server");
  for (int ranks : kRanks) {
    for (int partitions : {1, 2, ranks, 2 * ranks + 1}) {
      const Problem p{.ranks = ranks, .partitions = partitions, .rotation = partitions + 5};
      if (!VerifyAllreduce(algorithm, p)) return;
    }
  }
  // Small blocks in one piece, to another server from operation to operation.
  for (int rotation : {0, 1, 2, 3}) {
    const Schedule schedule = algorithm.build(
        {.rank = 1, .ranks = 3, .block_bytes = 1000, .rotation = rotation});
    CHECK_EQ(schedule.Peers(), rotation % 3 == 1 ? 2 : 1);
  }
}

TEST(CollectiveVaryingBlocks) {
  for (const Algorithm& algorithm : AlgorithmTable()) {
    const Collective c = algorithm.collective;
    const bool matrix = c == Collective::kAlltoallv;
    if (!matrix && c != Collective::kAllgatherv && c != Collective::kGatherv &&
        c != Collective::kScatterv && c != Collective::kReduceScatterv) {
      continue;
    }
    for (int ranks : kRanks) {
      for (int root : Roots(algorithm, ranks)) {
        for (bool coded : {false, true}) {
          Problem p{.ranks = ranks, .root = root, .chunk_bytes = 256, .coded = coded};
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

TEST(CollectiveRaggedAlltoall) {
  const Algorithm& algorithm = Find(Collective::kRaggedAlltoall, "direct");
  for (int ranks : kRanks) {
    for (bool coded : {false, true}) {
      std::mt19937 random(ranks);
      std::vector<std::vector<int64_t>> bytes(ranks, std::vector<int64_t>(ranks));
      for (auto& row : bytes) {
        for (int64_t& size : row) size = random() % 3 == 0 ? 0 : random() % 200 * 4;
      }
      // Packed by peer in Input, and in Output with a gap of 12 bytes that nobody writes.
      World world;
      world.unit = 4;
      std::vector<Problem> problems;
      for (int rank = 0; rank < ranks; ++rank) {
        Problem p{.rank = rank, .ranks = ranks, .chunk_bytes = 128, .coded = coded};
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
      const Outcome outcome = Oracle(world, expressions, 1).Run();
      if (!CHECK_EQ(outcome.error, "")) return;
      for (int rank = 0; rank < ranks; ++rank) {
        testing::Block expected(outcome.output[rank][0].size());
        for (int peer = 0; peer < ranks; ++peer) {
          const int place = static_cast<int>(problems[peer].send_offsets[rank] / 4);
          int value = expressions.Operand(peer);
          if (coded && peer != rank) value = expressions.Coded(value);
          for (int64_t i = 0; i < bytes[peer][rank] / 4; ++i) {
            expected[problems[rank].recv_offsets[peer] / 4 + i] = {
                0, place + static_cast<int>(i), value};
          }
        }
        if (!CHECK(outcome.output[rank][0] == expected)) return;
      }
    }
  }
}

TEST(CollectivePermute) {
  const Algorithm& algorithm = Find(Collective::kPermute, "direct");
  for (int ranks : kRanks) {
    std::vector<std::vector<std::pair<int, int>>> cases(5);
    for (int rank = 0; rank < ranks; ++rank) {
      cases[1].push_back({rank, (rank + 1) % ranks});      // a ring; on one rank, to itself
      cases[2].push_back({rank, ranks - 1 - rank});        // pairs, the middle one to itself
      if (rank % 3 == 0) cases[3].push_back({rank, (rank + 2) % ranks});  // holes
      cases[4].push_back({0, rank});                       // one source
    }
    for (const auto& pairs : cases) {
      for (bool coded : {false, true}) {
        for (const Size& size : kSizes) {
          const Problem p{.ranks = ranks,
                          .block_bytes = size.block_bytes,
                          .chunk_bytes = size.chunk_bytes,
                          .coded = coded,
                          .pairs = pairs};
          if (!Verify(algorithm, p, /*shared_memory=*/false)) return;
        }
      }
    }
  }
}

TEST(CollectiveSendrecv) {
  constexpr int kRankCount = 5;
  // A shift without wrap-around: the ends have nobody.
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
  const Outcome outcome = Oracle(world, expressions, 1).Run();
  if (!CHECK_EQ(outcome.error, "")) return;
  for (int rank = 0; rank < kRankCount; ++rank) {
    for (const Cell& cell : outcome.output[rank][0]) {
      CHECK_EQ(cell.value, rank == 0 ? -1 : expressions.Operand(rank - 1));
    }
  }
}

TEST(CollectiveSendAndRecv) {
  // Rank 0 sends to rank 1, which receives; rank 2 sends to itself in one sendrecv.
  Problem p{.ranks = 3, .block_bytes = 128, .coded = true};
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
  const Outcome outcome = Oracle(world, expressions, 1).Run();
  if (!CHECK_EQ(outcome.error, "")) return;
  CHECK_EQ(outcome.output[0][0][0].value, -1);
  CHECK_EQ(outcome.output[1][0][1].value, expressions.Coded(expressions.Operand(0)));
  CHECK_EQ(outcome.output[2][0][1].value, expressions.Operand(2));
}

TEST(CollectiveBarrier) {
  const Algorithm& algorithm = Find(Collective::kBarrier, "dissemination");
  for (int ranks : kRanks) {
    const World world = Build(algorithm, Problem{.ranks = ranks}, false);
    Expressions expressions;
    CHECK_EQ(Oracle(world, expressions, 1).Run().error, "");
    // No rank gets through while another has not come.
    for (int missing = 0; missing < ranks; ++missing) {
      World partial = world;
      partial.schedules[missing] = Schedule();
      const Outcome outcome = Oracle(partial, expressions, 1).Run();
      for (int rank = 0; rank < ranks; ++rank) CHECK(rank == missing || !outcome.finished[rank]);
    }
  }
}

TEST(CollectiveOneRankOnlyCopies) {
  for (const Algorithm& algorithm : AlgorithmTable()) {
    if (!HasUniformBlocks(algorithm.collective)) continue;
    const Schedule schedule =
        algorithm.build(Problem{.block_bytes = 1000, .chunk_bytes = 128, .coded = true});
    for (const Task& task : schedule.tasks) CHECK(task.kind == TaskKind::kCopy);
    CHECK_EQ(schedule.tasks.empty(), algorithm.collective == Collective::kExscan);
    CHECK(schedule.code.empty() && schedule.scratch.empty());
  }
}

// The oracle must see what is wrong, or its silence means nothing.
TEST(CollectiveOracleNoticesErrors) {
  const Slot in{Space::kInput, 0, 0, 64}, out{Space::kOutput, 0, 0, 64};
  Expressions expressions;
  World world;
  world.input_bytes = world.output_bytes = {{64}, {64}};
  {
    // Both receive in place of what they still have to send, and wait for that.
    for (int rank = 0; rank < 2; ++rank) {
      ScheduleBuilder builder;
      const TaskId send = builder.Send(1 - rank, 0, in);
      builder.Recv(1 - rank, 0, out, {send});
      world.schedules.push_back(std::move(builder).Build());
    }
    CHECK(Oracle(world, expressions, 1).Run().error.find("deadlock") != std::string::npos);
    CHECK_EQ(FindHazard(world.schedules[0], true), "");
  }
  {
    ScheduleBuilder builder;
    builder.Send(1, 0, in);
    builder.Recv(1, 0, out);
    const Schedule schedule = std::move(builder).Build();
    CHECK_EQ(FindHazard(schedule, false), "");
    CHECK(FindHazard(schedule, true) != "");
  }
  {
    // The values that a code is compared with must still be there.
    ScheduleBuilder builder;
    const Slot code = builder.Code(0, 64), loss{Space::kLoss, 0, 0, 64};
    const TaskId encode = builder.Encode(0, 0, code, in);
    builder.Lose(loss, in, code, false, false, {encode});
    builder.Decode(out, code, {encode});
    const Schedule schedule = std::move(builder).Build();
    CHECK_EQ(FindHazard(schedule, false), "");
    CHECK(FindHazard(schedule, true) != "");
  }
  {
    ScheduleBuilder builder;
    const Slot scratch = builder.Scratch(0, 64);
    builder.Recv(1, 0, scratch);
    builder.Merge(out, {in, scratch}, true);
    CHECK(FindHazard(std::move(builder).Build(), false) != "");
  }
}

TEST(CollectiveTables) {
  for (int i = 0; i < kCollectiveCount; ++i) {
    const CollectiveInfo& info = CollectiveTable()[i];
    CHECK_EQ(static_cast<int>(info.id), i);
    const Result<Collective> parsed = ParseCollective(info.name);
    if (CHECK_OK(parsed)) CHECK(parsed.value() == info.id);
    // Whatever the problem, "auto" finds an algorithm.
    for (int ranks : kRanks) {
      for (int64_t bytes : {int64_t{0}, int64_t{5000}, int64_t{1} << 20, int64_t{1} << 40}) {
        for (int flags = 0; flags < 8; ++flags) {
          const Problem p{.ranks = ranks,
                          .block_bytes = bytes,
                          .coded = (flags & 1) != 0,
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

TEST(CollectiveSelect) {
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
  CHECK_EQ(name(allreduce, {.ranks = 2, .block_bytes = large, .coded = true}), "one_shot");
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

TEST(CollectiveSentBytes) {
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

TEST(CollectiveHugeBlocksStaySmallSchedules) {
  // A chunk size that would cut 1 TiB into 2^34 pieces is raised; sizes stay 64-bit.
  const Problem p{.rank = 1, .ranks = 3, .block_bytes = (int64_t{1} << 40) + 100,
                  .chunk_bytes = 64};
  const Schedule schedule = Find(Collective::kBcast, "chain").build(p);
  CHECK(schedule.tasks.size() <= 2 * kMaxChunks);
  CHECK_EQ(schedule.SentBytes(), p.block_bytes);
}

TEST(CollectiveToString) {
  const Schedule schedule = Find(Collective::kBcast, "chain")
                                .build({.rank = 1, .ranks = 3, .block_bytes = 100, .coded = true});
  CHECK_EQ(schedule.ToString(),
           "0 recv code0[0,100) from 0 tag 0\n"
           "1 send code0[0,100) to 2 tag 0 after 0\n"
           "2 decode output0[0,100) <- code0[0,100) after 0\n");
}

TEST(CollectivePatterns) {
  for (int parts : kRanks) {
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
  for (int ranks : kRanks) {
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
