// Broadcasts with a delta base: only the difference to values that all ranks hold is sent.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "patience.h"
#include "team.h"

namespace jaxccomp {
namespace {

using testing::Array;
using testing::ArrayOf;
using testing::CallOf;
using testing::Contains;
using testing::Pending;
using testing::Style;
using testing::Team;
using testing::ValuesOf;

using Tree = std::vector<Array>;

struct Leaf {
  DType dtype;
  int64_t count;
};

// Every kind of coding, a leaf without elements, and one that ends within a chunk of any size.
const std::vector<Leaf> kTree = {
    {DType::kInt32, 7},      {DType::kBFloat16, 1301}, {DType::kFloat32, 1},
    {DType::kInt8, 0},       {DType::kBool, 5},        {DType::kFloat32, 9001},
    {DType::kFloat64, 170},  {DType::kFloat16, 999},   {DType::kComplex64, 33},
    {DType::kOpaque8, 4097}, {DType::kInt64, 65},
};

Tree RandomTree(const std::vector<Leaf>& leaves, uint32_t seed) {
  std::minstd_rand random(seed);
  Tree tree;
  for (const Leaf& leaf : leaves) {
    Array& array = tree.emplace_back(leaf.dtype, 1, leaf.count);
    for (std::byte& b : array.bytes) b = static_cast<std::byte>(random() >> 8);
  }
  return tree;
}

// `tree` with the lowest bit flipped in the first and every further 16th value.
Tree Changed(Tree tree) {
  for (Array& array : tree) {
    const auto step = static_cast<size_t>(16 * SizeBytes(array.dtype));
    for (size_t at = 0; at < array.bytes.size(); at += step) array.bytes[at] ^= std::byte{1};
  }
  return tree;
}

enum class Place { kApart, kOnOperand, kOnReference };
constexpr Place kPlaces[] = {Place::kApart, Place::kOnOperand, Place::kOnReference};

// One rank's own buffers, and its results at `place`.
struct Buffers {
  Buffers(Tree operand, Tree reference, Place place)
      : in(std::move(operand)), ref(std::move(reference)), out(in) {
    for (Array& array : out) std::fill(array.bytes.begin(), array.bytes.end(), std::byte{0xa5});
    result = place == Place::kApart ? &out : place == Place::kOnOperand ? &in : &ref;
  }

  Call MakeCall(int64_t run_id, bool has_ref) {
    std::vector<Array*> inputs, outputs;
    for (Array& array : in) inputs.push_back(&array);
    for (Array& array : *result) outputs.push_back(&array);
    Call call = CallOf(inputs, outputs, run_id);
    for (Array& array : ref) {
      if (has_ref) call.refs.push_back(array.View());
    }
    return call;
  }

  Tree in, ref, out;
  Tree* result;
};

OpSpec SpecOf(int root, const std::string& codec, const std::string& algorithm = "auto") {
  OpSpec spec;
  spec.collective = Collective::kBcast;
  spec.root = root;
  spec.codec = codec;
  spec.algorithm = algorithm;
  spec.shapes = "a tree";
  spec.where = "step.py:7";
  spec.has_ref = true;
  return spec;
}

// chain_recoded encodes results, which may have overwritten delta bases, so it refuses delta bases.
std::vector<std::string> Algorithms() {
  std::vector<std::string> names = {"auto"};
  for (const Algorithm& a : AlgorithmTable()) {
    if (a.collective == Collective::kBcast && a.name != "chain_recoded") names.emplace_back(a.name);
  }
  return names;
}

int64_t SentBytes(Team& team) {
  int64_t bytes = 0;
  for (int rank = 0; rank < team.ranks; ++rank) {
    if (rank > 0 && team.style() == Style::kDevices) break;
    bytes += team.EngineOf(rank).measurements().GetStats()[static_cast<size_t>(Collective::kBcast)].sent_bytes;
  }
  return bytes;
}

// Runs the one site of `program` on all ranks. Returns the results by rank.
std::vector<Tree> RunOnAll(Team& team, const OpSpec& spec, const Tree& values,
                           const Tree& reference, Place place) {
  Team::Program program = team.Compile(std::vector<OpSpec>{spec});
  const int64_t run_id = team.NextRunId();
  std::vector<Tree> results(static_cast<size_t>(team.ranks));
  team.OnRanks([&](int rank) {
    Tree operand = values;
    if (rank != spec.root) {
      for (Array& a : operand) std::fill(a.bytes.begin(), a.bytes.end(), std::byte{0x77});
    }
    Buffers buffers(operand, reference, place);
    const Status status =
        team.Run(rank, program.At(rank, 0), buffers.MakeCall(run_id, spec.has_ref));
    if (!CHECK_OK(status)) return;
    CHECK(place == Place::kOnReference || buffers.ref == reference);
    CHECK(place == Place::kOnOperand || buffers.in == operand);
    results[rank] = *buffers.result;
  });
  return results;
}

TEST(engine_delta_base_returns_the_roots_bits) {
  const Tree reference = RandomTree(kTree, 1), values = Changed(reference);
  for (int ranks : {1, 2, 3, 5, 8}) {
    for (Style style : testing::kStyles) {
      for (const char* chunk_bytes : {"256", "4096", "1048576"}) {
        Team team(style, ranks);
        team.SetOption("chunk_bytes", chunk_bytes);
        for (const std::string& algorithm : Algorithms()) {
          for (Place place : kPlaces) {
            const OpSpec spec = SpecOf((ranks * 5 / 7) % ranks, "lossless", algorithm);
            for (const Tree& result : RunOnAll(team, spec, values, reference, place)) {
              if (result == values) continue;
              CHECK_EQ(spec.ToString() + " on " + std::to_string(ranks) + " ranks, chunks of " +
                           chunk_bytes + ", place " + std::to_string(static_cast<int>(place)),
                       "");
            }
          }
        }
      }
    }
  }
}

TEST(engine_delta_base_saves_bytes) {
  const Tree reference = RandomTree({{DType::kBFloat16, 40000}, {DType::kFloat32, 30000}}, 2);
  const Tree values = Changed(reference);
  for (Style style : testing::kStyles) {
    Team team(style, 3);
    int64_t sent[2];
    for (bool has_ref : {false, true}) {
      OpSpec spec = SpecOf(0, "lossless");
      spec.has_ref = has_ref;
      const int64_t before = SentBytes(team);
      for (const Tree& result : RunOnAll(team, spec, values, reference, Place::kApart)) {
        CHECK(result == values);
      }
      sent[has_ref] = SentBytes(team) - before;
    }
    CHECK(sent[1] * 5 < sent[0]);
  }
}

// The error of a lossy codec is relative to the difference, not to the values. All ranks have the same bits.
TEST(engine_delta_base_bounds_lossy_errors_by_the_difference) {
  std::vector<float> old_values(5001), new_values(5001);
  for (size_t i = 0; i < old_values.size(); ++i) {
    old_values[i] = std::sin(static_cast<float>(i));
    new_values[i] = old_values[i] + 1e-3f * std::cos(static_cast<float>(3 * i));
  }
  const Tree reference = {ArrayOf(DType::kFloat32, old_values), Array(DType::kInt32, 1, 9)};
  Tree values = {ArrayOf(DType::kFloat32, new_values), Array(DType::kInt32, 1, 9, std::byte{3})};
  for (Style style : testing::kStyles) {
    Team team(style, 3);
    team.SetOption("chunk_bytes", "4096");
    for (const std::string codec : {"bf16", "int8", "int8:rounding=stochastic", "bf16|lossless"}) {
      for (const std::string& algorithm : Algorithms()) {
        for (Place place : kPlaces) {
          const std::vector<Tree> results =
              RunOnAll(team, SpecOf(1, codec, algorithm), values, reference, place);
          for (const Tree& result : results) {
            if (!CHECK(!result.empty() && result == results[0])) continue;
            CHECK(result[1] == values[1]);
            const auto got = ValuesOf<float>(result[0]);
            float worst = 0;
            for (size_t i = 0; i < got.size(); ++i) {
              worst = std::max(worst, std::fabs(got[i] - new_values[i]));
            }
            CHECK(worst < 1.1e-5f);
          }
        }
      }
    }
  }
}

// Every rank gets an error, in its next operation at the latest. The rank with the different delta base has decoded
// nothing.
TEST(engine_different_delta_bases_raise_on_every_rank) {
  const std::vector<Leaf> leaves = {{DType::kInt32, 0}, {DType::kFloat32, 20000}};
  for (Style style : testing::kStyles) {
    for (int ranks : {2, 3, 5}) {
      for (const std::string& algorithm : Algorithms()) {
        for (const std::string codec : {"lossless", "int8"}) {
          const int odd = ranks - 1;
          Team team(style, ranks);
          OpSpec meeting;  // synchronises: before this, a sender waits for no rank
          meeting.collective = Collective::kAllreduce;
          Team::Program program =
              team.Compile(std::vector<OpSpec>{SpecOf(0, codec, algorithm), meeting});
          const Tree reference = RandomTree(leaves, 4), values = Changed(reference);
          team.OnRanks([&](int rank) {
            Tree mine = reference;
            // Flip one bit of one value in every chunk of any algorithm.
            for (size_t i = 0; rank == odd && i < mine[1].bytes.size(); i += 64) {
              mine[1].bytes[i] ^= std::byte{1};
            }
            Buffers buffers(values, mine, Place::kApart), sum(reference, {}, Place::kApart);
            const Tree untouched = buffers.out;
            Status told = team.Run(rank, program.At(rank, 0), buffers.MakeCall(1, true));
            if (rank == odd) CHECK(!told.ok() && buffers.out == untouched);
            if (told.ok()) told = team.Run(rank, program.At(rank, 1), sum.MakeCall(1, false));
            CHECK(told.code() == Code::kFailedPrecondition || told.code() == Code::kAborted);
            Contains(told, "the reference of tensor 2 of 2 (float32, somewhere in values ");
            Contains(told, "differs between " + team.NameOf(0));
            Contains(told, " and " + team.NameOf(odd));
            Contains(told, "step.py:7");
            Contains(told, "with ref");
          });
        }
      }
    }
  }
}

// Small encoded chunks that have not been received yet do not stop the root from encoding the next chunks.
TEST(engine_delta_base_lets_the_root_encode_ahead) {
  Team team(Style::kProcesses, 2);
  const Tree reference = RandomTree({{DType::kFloat32, 4 << 20}}, 6), values = Changed(reference);
  Team::Program program = team.Compile(std::vector<OpSpec>{SpecOf(0, "lossless", "chain")});
  team.OnRanks([&](int rank) {   // this run compares the program
    Buffers buffers(values, reference, Place::kApart);
    CHECK_OK(team.Run(rank, program.At(rank, 0), buffers.MakeCall(1, true)));
  });
  const int64_t all_bytes = SentBytes(team);
  Buffers first(values, reference, Place::kApart), second(values, reference, Place::kApart);
  const Pending pending = team.Start(0, program.At(0, 0), first.MakeCall(2, true));
  const testing::Stopwatch watch;
  while (SentBytes(team) < 2 * all_bytes && watch.Seconds() < 30) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK_EQ(SentBytes(team), 2 * all_bytes);
  CHECK(!pending.IsOver());
  CHECK_OK(team.Run(1, program.At(1, 0), second.MakeCall(2, true)));
  CHECK_OK(pending.Get());
  CHECK(first.out == values && second.out == values);
}

// All ranks must agree on the use of a delta base.
TEST(engine_delta_base_on_some_ranks_only_raises) {
  // The devices of a process always run one program.
  Team team(Style::kProcesses, 2);
  OpSpec plain = SpecOf(0, "lossless");
  plain.has_ref = false;
  Team::Program program = team.Compile([&](int rank) {
    return std::vector<OpSpec>{rank == 1 ? plain : SpecOf(0, "lossless")};
  });
  const Tree tree = RandomTree({{DType::kFloat32, 100}}, 5);
  team.OnRanks([&](int rank) {
    Status told;
    for (int64_t launch = 1; told.ok() && launch <= 3; ++launch) {
      Buffers buffers(tree, tree, Place::kApart);
      told = team.Run(rank, program.At(rank, 0), buffers.MakeCall(launch, rank == 0));
    }
    Contains(told, "with ref");
  });
}

TEST(engine_delta_base_must_match_the_values) {
  const auto refused = [](const OpSpec& spec, Tree reference, const std::string& says) {
    Team team(Style::kDevices, 1);
    Team::Program program = team.Compile(std::vector<OpSpec>{spec});
    Buffers buffers({Array(DType::kFloat32, 1, 4)}, std::move(reference), Place::kApart);
    const Status status = team.Run(0, program.At(0, 0), buffers.MakeCall(1, true));
    CHECK(status.code() == Code::kInvalidArgument);
    Contains(status, says);
  };
  const Tree right = {Array(DType::kFloat32, 1, 4)};
  const std::string needs = "each operand needs references of its type and size";
  refused(SpecOf(0, "lossless"), {}, needs);
  refused(SpecOf(0, "lossless"), {right[0], right[0]}, needs);
  refused(SpecOf(0, "lossless"), {Array(DType::kInt32, 1, 4)}, needs);
  refused(SpecOf(0, "lossless"), {Array(DType::kFloat32, 1, 5)}, needs);
  OpSpec other = SpecOf(-1, "lossless");
  other.collective = Collective::kAllreduce;
  refused(other, right, "takes no references");
  OpSpec plain = SpecOf(0, "lossless");
  plain.has_ref = false;
  refused(plain, right, "takes no references");
}

}  // namespace
}  // namespace jaxccomp
