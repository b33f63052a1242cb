// Every collective and algorithm through the whole engine, compared with directly computed values.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "check.h"
#include "codec/registry.h"
#include "common/half.h"
#include "team.h"

namespace jaxccomp {
namespace {

using testing::Array;
using testing::CallOf;
using testing::Scramble;
using testing::Style;
using testing::Team;

using Values = std::vector<int64_t>;

struct Leaf {
  DType dtype;
  int64_t count;  // elements of a block, or of a row for the v-variants
};

// The definition of an operation, independent of the algorithm.
struct Exercise {
  OpSpec spec;  // without algorithm, codec and addresses
  int ranks = 1;
  std::vector<Leaf> leaves;
  // Values below 20: every type, including bfloat16, holds their sums over 11 ranks exactly.
  bool small = false;
  int64_t padded_rows = -1;  // v-variants: rows of all ranks' tensors; -1: exactly the rows needed
};

const CollectiveInfo& InfoOf(const Exercise& p) { return Info(p.spec.collective); }

// The operand of `rank`: block `block` of leaf `leaf`.
Values Operand(const Exercise& p, int rank, int block, int leaf, int64_t count) {
  const DType dtype = p.leaves[leaf].dtype;
  const bool small = p.small || dtype == DType::kBFloat16;
  const uint32_t modulus = p.spec.mean ? 3 : small ? 19 : 1 << 20;
  const uint32_t seed = Scramble(static_cast<uint32_t>(rank * 4096 + block * 64 + leaf));
  Values values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = Scramble(static_cast<uint32_t>(i) + seed) % modulus;
    if (p.spec.mean) values[i] *= p.ranks;  // makes the mean exact
  }
  return values;
}

int64_t Reduce(ReduceOp op, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::kSum: return a + b;
    case ReduceOp::kProd: return static_cast<int64_t>(static_cast<uint64_t>(a) * b);
    case ReduceOp::kMin: return std::min(a, b);
    case ReduceOp::kMax: return std::max(a, b);
    case ReduceOp::kAnd: return a & b;
    case ReduceOp::kOr: return a | b;
    case ReduceOp::kXor: return a ^ b;
  }
  return 0;
}

// Reductions of a block over ranks [first, last), cached.
class Reductions {
 public:
  explicit Reductions(const Exercise& p) : p_(p) {}

  const Values& Of(int leaf, int block, int64_t count, int first, int last) {
    Values& values = known_[{leaf, block, first, last}];
    if (!values.empty() || count == 0) return values;
    values = Operand(p_, last - 1, block, leaf, count);
    if (last - first > 1) {
      const Values& before = Of(leaf, block, count, first, last - 1);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = Reduce(p_.spec.reduce_op, before[i], values[i]);
      }
    }
    return values;
  }

 private:
  const Exercise& p_;
  std::map<std::tuple<int, int, int, int>, Values> known_;
};

// Placeholders for the largest and the smallest value of a type, or infinities.
constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();

template <typename T>
T Convert(int64_t value) {
  using Limits = std::numeric_limits<T>;
  if (value == kLargest) return Limits::has_infinity ? Limits::infinity() : Limits::max();
  if (value == kSmallest) return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  return static_cast<T>(value);
}

// The result of an empty reduction.
int64_t Nothing(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProd: return 1;
    case ReduceOp::kMin: return kLargest;
    case ReduceOp::kMax: return kSmallest;
    case ReduceOp::kAnd: return -1;
    default: return 0;
  }
}

void Store(const Values& values, Array* array, int64_t first_element) {
  std::byte* at = array->bytes.data() + first_element * SizeBytes(array->dtype);
  DispatchArithmetic(array->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t value : values) {
      T stored;
      if constexpr (std::is_same_v<T, BFloat16>) {
        stored = ToBFloat16(Convert<float>(value));
      } else if constexpr (std::is_arithmetic_v<T>) {
        stored = Convert<T>(value);
      } else {
        CHECK(!"a type that these tests do not use");
        return;
      }
      std::memcpy(at, &stored, sizeof(T));
      at += sizeof(T);
    }
  });
}

// The rows of each block on this side of the operation: one row per block without `counts`.
std::vector<int64_t> RowsOf(const Exercise& p, int rank, bool input) {
  const auto& c = p.spec.counts;
  const Blocks blocks = input ? InfoOf(p).input : InfoOf(p).output;
  if (c.empty()) {
    return blocks == Blocks::kOne ? std::vector<int64_t>{1} : std::vector<int64_t>(p.ranks, 1);
  }
  if (p.spec.collective == Collective::kAlltoallv) {
    std::vector<int64_t> rows;
    for (int peer = 0; peer < p.ranks; ++peer) {
      rows.push_back(input ? c[rank * p.ranks + peer] : c[peer * p.ranks + rank]);
    }
    return rows;
  }
  return blocks == Blocks::kOne ? std::vector<int64_t>{c[rank]} : c;
}

int64_t Total(const std::vector<int64_t>& rows) {
  int64_t total = 0;
  for (int64_t r : rows) total += r;
  return total;
}

// The operands and results of all ranks.
struct Data {
  std::vector<std::vector<Array>> inputs, results;  // by rank and leaf
};

class Computation {
 public:
  explicit Computation(const Exercise& p) : p_(p), reductions_(p) {}

  Data Run() {
    Data data;
    for (int rank = 0; rank < p_.ranks; ++rank) {
      auto& inputs = data.inputs.emplace_back();
      auto& results = data.results.emplace_back();
      for (size_t leaf = 0; leaf < p_.leaves.size(); ++leaf) {
        inputs.push_back(Side(rank, static_cast<int>(leaf), true));
        results.push_back(Side(rank, static_cast<int>(leaf), false));
      }
    }
    return data;
  }

 private:
  Array Side(int rank, int leaf, bool input) {
    const Leaf& l = p_.leaves[leaf];
    const std::vector<int64_t> rows = RowsOf(p_, rank, input);
    const bool pads = p_.padded_rows >= 0 && !p_.spec.counts.empty();
    const int64_t all_rows = pads ? std::max(p_.padded_rows, Total(rows)) : Total(rows);
    // Padding contains garbage in an operand and zeros in a result.
    Array array(l.dtype, all_rows, l.count, input ? std::byte{0x5a} : std::byte{0});
    int64_t row = 0;
    for (size_t block = 0; block < rows.size(); ++block) {
      const int64_t count = rows[block] * l.count;
      const int b = static_cast<int>(block);
      Store(input ? Operand(p_, rank, b, leaf, count) : Result(rank, b, leaf, count), &array,
            row * l.count);
      row += rows[block];
    }
    return array;
  }

  // Block `block` of the result at `rank`; empty: zeros.
  Values Result(int rank, int block, int leaf, int64_t count) {
    const OpSpec& spec = p_.spec;
    const int root = static_cast<int>(spec.root);
    auto reduced = [&](int of_block, int first, int last) -> Values {
      if (first >= last) return Values(static_cast<size_t>(count), Nothing(spec.reduce_op));
      Values values = reductions_.Of(leaf, of_block, count, first, last);
      for (int64_t& value : values) value /= spec.mean ? p_.ranks : 1;
      return values;
    };
    auto operand = [&](int of_rank, int of_block) {
      return Operand(p_, of_rank, of_block, leaf, count);
    };
    switch (spec.collective) {
      case Collective::kBcast: return operand(root, 0);
      case Collective::kAllreduce: return reduced(0, 0, p_.ranks);
      case Collective::kReduce: return rank == root ? reduced(0, 0, p_.ranks) : Values();
      case Collective::kAllgather:
      case Collective::kAllgatherv: return operand(block, 0);
      case Collective::kGather:
      case Collective::kGatherv: return rank == root ? operand(block, 0) : Values();
      case Collective::kScatter:
      case Collective::kScatterv: return operand(root, rank);
      case Collective::kReduceScatter:
      case Collective::kReduceScatterv: return reduced(rank, 0, p_.ranks);
      case Collective::kAlltoall:
      case Collective::kAlltoallv: return operand(block, rank);
      case Collective::kScan:
        return spec.reverse ? reduced(0, rank, p_.ranks) : reduced(0, 0, rank + 1);
      case Collective::kExscan:
        return spec.reverse ? reduced(0, rank + 1, p_.ranks) : reduced(0, 0, rank);
      case Collective::kPermute:
        for (size_t i = 0; i < spec.pairs.size(); i += 2) {
          if (spec.pairs[i + 1] == rank) return operand(static_cast<int>(spec.pairs[i]), 0);
        }
        return {};
      default: CHECK(!"not computed here"); return {};
    }
  }

  const Exercise& p_;
  Reductions reductions_;
};

struct Way {
  std::string algorithm, codec;
  bool in_place;
};

bool AllowsInPlace(Collective c) {
  return c == Collective::kBcast || c == Collective::kAllreduce || c == Collective::kReduce ||
         c == Collective::kScan || c == Collective::kExscan;
}

std::vector<Way> WaysOf(const Exercise& p) {
  std::vector<std::string> algorithms = {"auto"};
  for (const Algorithm& a : AlgorithmTable()) {
    if (a.collective == p.spec.collective) algorithms.emplace_back(a.name);
  }
  std::vector<Way> ways;
  for (const std::string& algorithm : algorithms) {
    for (const std::string codec : {"raw", "bf16"}) {
      if (codec != "raw" && (!p.small || p.spec.mean || p.spec.reduce_op != ReduceOp::kSum)) {
        continue;
      }
      ways.push_back({algorithm, codec, false});
      if (AllowsInPlace(p.spec.collective)) ways.push_back({algorithm, codec, true});
    }
  }
  return ways;
}

std::string ShapesOf(const Exercise& p) {
  std::string text;
  for (const Leaf& l : p.leaves) {
    text += (text.empty() ? "" : ", ") + std::string(Name(l.dtype)) + "[" +
            std::to_string(l.count) + "]";
  }
  return text;
}

// Runs all variants of the exercise in one program, on both styles of team.
void RunAll(const std::vector<Team*>& teams, Exercise p) {
  p.spec.shapes = ShapesOf(p);
  const Data data = Computation(p).Run();
  const std::vector<Way> ways = WaysOf(p);
  std::vector<OpSpec> specs;
  for (const Way& way : ways) {
    OpSpec spec = p.spec;
    spec.algorithm = way.algorithm;
    spec.codec = way.codec;
    specs.push_back(spec);
  }
  for (Team* team : teams) {
    Team::Program program = team->Compile(specs);
    const int64_t run_id = team->NextRunId();
    team->OnRanks([&](int rank) {
      for (size_t i = 0; i < ways.size(); ++i) {
        std::vector<Array> inputs = data.inputs[rank];
        std::vector<Array> outputs = data.results[rank];
        if (ways[i].in_place) {
          outputs = inputs;
        } else {
          for (Array& a : outputs) std::fill(a.bytes.begin(), a.bytes.end(), std::byte{0xa5});
        }
        std::vector<Array*> in, out;
        for (Array& a : ways[i].in_place ? outputs : inputs) in.push_back(&a);
        for (Array& a : outputs) out.push_back(&a);
        const Status status = team->Run(rank, program.At(rank, i), CallOf(in, out, run_id));
        if (!CHECK_OK(status)) return;
        for (size_t leaf = 0; leaf < outputs.size(); ++leaf) {
          if (outputs[leaf] == data.results[rank][leaf]) continue;
          const std::string wrong =
              specs[i].ToString() + " algorithm " + ways[i].algorithm +
              (ways[i].in_place ? " in place" : "") + ", rank " + std::to_string(rank) + " of " +
              std::to_string(p.ranks) + ", leaf " + std::to_string(leaf) +
              (team->style() == Style::kDevices ? ", devices" : ", processes");
          CHECK_EQ(wrong, "");
        }
        CHECK(ways[i].in_place || inputs == data.inputs[rank]);
      }
    });
  }
}

// Teams of `ranks` ranks in both styles.
struct Teams {
  explicit Teams(int ranks, int64_t chunk_bytes)
      : devices(Style::kDevices, ranks), processes(Style::kProcesses, ranks) {
    for (Team* team : {&devices, &processes}) {
      team->SetOption("chunk_bytes", std::to_string(chunk_bytes));
    }
  }
  std::vector<Team*> both() { return {&devices, &processes}; }
  Team devices, processes;
};

constexpr Collective kUniform[] = {
    Collective::kBcast,     Collective::kAllreduce, Collective::kReduce,
    Collective::kAllgather, Collective::kGather,    Collective::kScatter,
    Collective::kReduceScatter, Collective::kAlltoall, Collective::kScan,
    Collective::kExscan,
};

Exercise Of(Collective collective, int ranks, std::vector<Leaf> leaves, bool small) {
  Exercise p;
  p.spec.collective = collective;
  p.spec.root = Info(collective).rooted ? (ranks * 5 / 7) % ranks : -1;
  p.ranks = ranks;
  p.leaves = std::move(leaves);
  p.small = small;
  return p;
}

const std::vector<Leaf> kOddTree = {{DType::kInt32, 7},    {DType::kBFloat16, 13},
                                    {DType::kFloat32, 1},  {DType::kInt8, 0},
                                    {DType::kInt8, 5},     {DType::kFloat32, 333},
                                    {DType::kFloat64, 17}};

TEST(engine_collectives_of_small_trees_match_the_definition) {
  for (int ranks : testing::kTeamSizes) {
    Teams teams(ranks, 256);
    for (Collective c : kUniform) {
      for (const std::vector<Leaf>& leaves :
           {std::vector<Leaf>{{DType::kFloat32, 0}}, {{DType::kInt32, 1}}, kOddTree}) {
        RunAll(teams.both(), Of(c, ranks, leaves, /*small=*/true));
      }
    }
  }
}

TEST(engine_collectives_match_the_definition_for_every_root) {
  Teams teams(5, 256);
  for (Collective c : kUniform) {
    for (int root = 0; Info(c).rooted && root < 5; ++root) {
      Exercise p = Of(c, 5, kOddTree, /*small=*/true);
      p.spec.root = root;
      RunAll(teams.both(), p);
    }
  }
}

TEST(engine_collectives_of_several_chunks_match_the_definition) {
  for (int ranks : testing::kTeamSizes) {
    Teams teams(ranks, 4096);
    for (Collective c : kUniform) {
      // Large enough for rendezvous payloads and for work without the lock.
      RunAll(teams.both(), Of(c, ranks, {{DType::kInt32, 33}, {DType::kFloat32, 13001}}, true));
    }
  }
}

TEST(engine_collectives_of_megabytes_match_the_definition) {
  for (int ranks : {2, 3, 5}) {
    Teams teams(ranks, 64 << 10);
    for (Collective c : kUniform) {
      const bool each = Info(c).input == Blocks::kPerRank || Info(c).output == Blocks::kPerRank;
      // 3 MiB for three ranks, less for other numbers; the same total for a side with a block per
      // rank.
      const int64_t count = (ranks == 3 ? 3 << 18 : 1 << 17) / (each ? ranks : 1);
      RunAll(teams.both(),
             Of(c, ranks, {{DType::kFloat32, count - 100}, {DType::kInt32, 101}}, false));
    }
  }
}

// With coder threads: the thread that computes each chunk is left to chance.
TEST(engine_collectives_with_coder_threads_match_the_definition) {
  for (const char* count : {"1", "3"}) {
    Teams teams(4, 64 << 10);
    for (Team* team : teams.both()) team->SetOption("coder_threads", count);
    for (Collective c : kUniform) {
      RunAll(teams.both(), Of(c, 4, {{DType::kFloat32, 100000}, {DType::kInt32, 101}}, true));
    }
  }
}

TEST(engine_reduce_ops_match_the_definition) {
  for (int ranks : {2, 5, 8}) {
    Teams teams(ranks, 256);
    for (Collective c : {Collective::kAllreduce, Collective::kReduce, Collective::kReduceScatter,
                         Collective::kScan, Collective::kExscan}) {
      for (ReduceOp op : {ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kXor}) {
        const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
        std::vector<Leaf> leaves = {{DType::kInt32, 103}, {DType::kUInt16, 3}};
        if (ordered) leaves = kOddTree;
        if (op == ReduceOp::kProd) leaves = {{DType::kInt32, 103}, {DType::kUInt64, 3}};
        Exercise p = Of(c, ranks, leaves, /*small=*/ordered);
        p.spec.reduce_op = op;
        RunAll(teams.both(), p);
      }
    }
  }
}

TEST(engine_mean_matches_the_definition) {
  for (int ranks : testing::kTeamSizes) {
    Teams teams(ranks, 256);
    for (Collective c : {Collective::kAllreduce, Collective::kReduce, Collective::kReduceScatter}) {
      Exercise p = Of(c, ranks,
                     {{DType::kFloat32, 211}, {DType::kBFloat16, 77}, {DType::kFloat64, 5}}, true);
      p.spec.mean = true;
      RunAll(teams.both(), p);
    }
  }
}

TEST(engine_reverse_scans_match_the_definition) {
  for (int ranks : testing::kTeamSizes) {
    Teams teams(ranks, 256);
    for (Collective c : {Collective::kScan, Collective::kExscan}) {
      Exercise p = Of(c, ranks, kOddTree, /*small=*/true);
      p.spec.reverse = true;
      RunAll(teams.both(), p);
    }
  }
}

TEST(engine_permute_matches_the_definition) {
  for (int ranks : testing::kTeamSizes) {
    Teams teams(ranks, 4096);
    std::vector<std::vector<int64_t>> all(4);
    for (int r = 0; r < ranks; ++r) {
      all[0].insert(all[0].end(), {r, (r + 1) % ranks});
      all[1].insert(all[1].end(), {r, ranks - 1 - r});         // some send to themselves
      if (r % 2 == 1) all[2].insert(all[2].end(), {r, r - 1});  // some send to no rank
      all[3].insert(all[3].end(), {ranks / 2, r});              // one sends to all
    }
    for (const auto& pairs : all) {
      for (const std::vector<Leaf>& leaves :
           {kOddTree, std::vector<Leaf>{{DType::kFloat32, 9001}}}) {
        Exercise p = Of(Collective::kPermute, ranks, leaves, /*small=*/true);
        p.spec.pairs = pairs;
        RunAll(teams.both(), p);
      }
    }
  }
}

TEST(engine_v_variants_match_the_definition) {
  for (int ranks : testing::kTeamSizes) {
    Teams teams(ranks, 256);
    for (Collective c : {Collective::kAllgatherv, Collective::kGatherv, Collective::kScatterv,
                         Collective::kReduceScatterv, Collective::kAlltoallv}) {
      const bool matrix = c == Collective::kAlltoallv;
      for (int kind = 0; kind < 4; ++kind) {
        Exercise p = Of(c, ranks, {{DType::kInt32, 3}, {DType::kBFloat16, 5}, {DType::kFloat32, 7}},
                       /*small=*/true);
        for (int i = 0; i < (matrix ? ranks * ranks : ranks); ++i) {
          // A few rows; many; none on some ranks, including the first; none at all.
          const int64_t counts[] = {1 + (i * 5) % 4, 20 + (i * 7) % 11, i * 3 % 4, 0};
          p.spec.counts.push_back(counts[kind]);
        }
        RunAll(teams.both(), p);
        p.padded_rows = 3;
        for (int rank = 0; rank < ranks; ++rank) {
          for (bool input : {true, false}) {
            p.padded_rows = std::max(p.padded_rows, Total(RowsOf(p, rank, input)));
          }
        }
        RunAll(teams.both(), p);
      }
    }
  }
}

TEST(engine_lossy_sums_have_equal_bits_on_all_ranks) {
  // All ranks hold the same bits, even with lossy codecs.
  constexpr int64_t kCount = 2001;
  for (int ranks : {2, 3, 5, 8}) {
    Teams teams(ranks, 512);
    std::vector<OpSpec> specs;
    for (const Algorithm& a : AlgorithmTable()) {
      if (a.collective != Collective::kAllreduce) continue;
      for (const char* codec : {"bf16", "bf16|lossless", "int8:rounding=stochastic"}) {
        specs.emplace_back().collective = Collective::kAllreduce;
        specs.back().algorithm = a.name;
        specs.back().codec = codec;
      }
    }
    std::vector<std::vector<float>> values(ranks, std::vector<float>(kCount));
    std::vector<double> sums(kCount), sizes(kCount);
    double most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      for (int64_t i = 0; i < kCount; ++i) {
        const uint32_t bits = Scramble(static_cast<uint32_t>(i * 16 + rank));
        const float value = (static_cast<float>(bits) - 0x1p31f) * 0x1p-24f;
        values[rank][i] = value;
        sums[i] += value;
        sizes[i] += std::fabs(value);
        most = std::max(most, sizes[i]);
      }
    }
    for (Team* team : teams.both()) {
      Team::Program program = team->Compile(specs);
      for (size_t site = 0; site < specs.size(); ++site) {
        std::vector<Array> results(ranks, Array(DType::kFloat32, 1, kCount));
        team->OnRanks([&](int rank) {
          Array in = testing::ArrayOf(DType::kFloat32, values[rank]);
          CHECK_OK(team->Run(rank, program.At(rank, site), CallOf({&in}, {&results[rank]}, 1)));
        });
        for (int rank = 1; rank < ranks; ++rank) {
          if (!CHECK(results[rank] == results[0])) {
            std::fprintf(stderr, "%s %s rank %d of %d\n", specs[site].algorithm.c_str(),
                         specs[site].codec.c_str(), rank, ranks);
          }
        }
        const std::vector<float> result = testing::ValuesOf<float>(results[0]);
        for (int64_t i = 0; i < kCount; ++i) {
          // On each rank that it passes, a value is rounded by at most 2^-8 of itself; with int8,
          // by 1/127 (and the scale's 2^-7) of the largest value of its block.
          const double size = specs[site].codec.starts_with("int8") ? 2.1 * most : sizes[i];
          if (!CHECK(std::fabs(result[i] - sums[i]) <= size * ranks / 256)) break;
        }
      }
    }
  }
}

// Half types: decoded values are added in float and rounded only once.
TEST(engine_lossy_half_types_round_once) {
  constexpr int kRankCount = 5, kRoot = 2;
  constexpr int64_t kCount = 2000;
  const auto codec = LookupCodec("int8");
  if (!CHECK_OK(codec)) return;
  Workspace workspace;
  const CodingContext context(workspace);
  std::vector<std::vector<BFloat16>> values(kRankCount);
  std::vector<float> wanted(kCount, 0.0f);
  for (int rank = 0; rank < kRankCount; ++rank) {
    for (int64_t i = 0; i < kCount; ++i) {
      const uint32_t bits = Scramble(static_cast<uint32_t>(i * 16 + rank));
      values[rank].push_back(ToBFloat16((static_cast<float>(bits) - 0x1p31f) * 0x1p-24f));
    }
    if (rank == kRoot) {  // its own values are not encoded
      for (int64_t i = 0; i < kCount; ++i) wanted[i] += ToFloat(values[rank][i]);
      continue;
    }
    std::vector<std::byte> code((*codec)->MaxEncodedBytes(DType::kBFloat16, kCount));
    const auto bytes =
        (*codec)->Encode(DType::kBFloat16, values[rank].data(), kCount, code, context);
    if (!CHECK_OK(bytes)) return;
    CHECK_OK((*codec)->DecodeMerge(DType::kBFloat16, std::span(code).first(*bytes), ReduceOp::kSum,
                                   DType::kFloat32, wanted.data(), kCount, context));
  }
  OpSpec spec;
  spec.collective = Collective::kReduce;
  spec.algorithm = "direct";
  spec.codec = "int8";
  spec.root = kRoot;
  spec.mean = true;
  Teams teams(kRankCount, 1 << 20);
  for (Team* team : teams.both()) {
    Team::Program program = team->Compile(std::vector<OpSpec>{spec});
    team->OnRanks([&](int rank) {
      Array in = testing::ArrayOf(DType::kBFloat16, values[rank]);
      Array out(DType::kBFloat16, 1, kCount);
      CHECK_OK(team->Run(rank, program.At(rank, 0), CallOf({&in}, {&out}, 1)));
      if (rank != kRoot) return;
      const auto result = testing::ValuesOf<BFloat16>(out);
      for (int64_t i = 0; i < kCount; ++i) {
        if (!CHECK_EQ(result[i].bits, ToBFloat16(wanted[i] / kRankCount).bits)) break;
      }
    });
  }
}

TEST(engine_barrier_waits_for_all_ranks) {
  for (int ranks : testing::kTeamSizes) {
    Teams teams(ranks, 256);
    for (Team* team : teams.both()) {
      OpSpec spec;
      spec.collective = Collective::kBarrier;
      spec.ordered = true;
      Team::Program program =
          team->Compile([&](int) { return std::vector<OpSpec>{spec, spec}; });
      std::atomic<int> arrived{0};
      for (int launch = 1; launch <= 20; ++launch) {
        team->OnRanks([&](int rank) {
          ++arrived;
          // A barrier may take operands, with different shapes on each rank.
          Array in(DType::kInt32, 1, rank, static_cast<std::byte>(rank));
          Array out(DType::kInt32, 1, rank);
          const bool holds = launch % 2 == 0;
          CHECK_OK(team->Run(rank, program.At(rank, holds),
                             holds ? CallOf({&in}, {&out}, launch) : CallOf({}, {}, launch)));
          CHECK(arrived.load() >= launch * ranks);
          CHECK(!holds || out == in);
        });
      }
    }
  }
}

}  // namespace
}  // namespace jaxccomp
