// Reductions with error feedback: over a sequence of steps no value is lost.
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "common/half.h"
#include "team.h"

namespace jaxccomp {
namespace {

using testing::Array;
using testing::ArrayOf;
using testing::CallOf;
using testing::Style;
using testing::Team;
using testing::ValuesOf;

using Tree = std::vector<Array>;
using Values = std::vector<double>;

// Several chunks, a leaf that ends within a chunk, a single value, and an empty leaf.
constexpr int64_t kCounts[] = {5003, 1, 0, 129};

std::vector<std::string> Algorithms(Collective collective = Collective::kAllreduce) {
  std::vector<std::string> names = {"auto"};
  for (const Algorithm& a : AlgorithmTable()) {
    if (a.collective == collective) names.emplace_back(a.name);
  }
  return names;
}

OpSpec SpecOf(const std::string& codec, const std::string& algorithm, bool mean, bool feedback) {
  OpSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.codec = codec;
  spec.algorithm = algorithm;
  spec.mean = mean;
  spec.shapes = "a tree";
  spec.feedback = feedback;
  return spec;
}

Array ToArray(DType dtype, const Values& values) {
  if (dtype == DType::kFloat64) return ArrayOf(dtype, values);
  const std::vector<float> floats(values.begin(), values.end());
  if (dtype == DType::kFloat32) return ArrayOf(dtype, floats);
  std::vector<uint16_t> halves;
  for (float value : floats) {
    halves.push_back(dtype == DType::kFloat16 ? ToFloat16(value).bits : ToBFloat16(value).bits);
  }
  return ArrayOf(dtype, halves);
}

Values FromArray(const Array& array) {
  if (array.dtype == DType::kFloat64) return ValuesOf<double>(array);
  Values values;
  if (array.dtype == DType::kFloat32) {
    for (float value : ValuesOf<float>(array)) values.push_back(value);
    return values;
  }
  for (uint16_t bits : ValuesOf<uint16_t>(array)) {
    values.push_back(array.dtype == DType::kFloat16 ? ToFloat(Float16{bits})
                                                    : ToFloat(BFloat16{bits}));
  }
  return values;
}

OpSpec ScatterSpecOf(const std::string& codec, const std::string& algorithm, bool mean) {
  OpSpec spec = SpecOf(codec, algorithm, mean, true);
  spec.collective = Collective::kReduceScatter;
  return spec;
}

// kCounts values in each of `rows` rows.
Tree RandomTree(DType dtype, uint32_t seed, int rows = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Tree tree;
  for (int64_t count : kCounts) {
    Values values(static_cast<size_t>(count * rows));
    for (double& value : values) value = normal(random);
    tree.push_back(ToArray(dtype, values));
    tree.back().rows = rows;
  }
  return tree;
}

Tree Add(const Tree& a, const Tree& b) {
  Tree sums;
  for (size_t i = 0; i < a.size(); ++i) {
    Values values = FromArray(a[i]);
    const Values more = FromArray(b[i]);
    for (size_t j = 0; j < values.size(); ++j) values[j] += more[j];
    sums.push_back(ToArray(a[i].dtype, values));
    sums.back().rows = a[i].rows;
  }
  return sums;
}

int64_t SentBytes(Team& team, Collective collective) {
  int64_t bytes = 0;
  for (int rank = 0; rank < team.ranks; ++rank) {
    if (rank > 0 && team.style() == Style::kDevices) break;
    bytes += team.EngineOf(rank).measurements().GetStats()[static_cast<size_t>(collective)].sent_bytes;
  }
  return bytes;
}

struct Outcome {
  Tree reduced, lost;
};

// Runs call site `site` on all ranks. In place, results use the memory of operands of their size, and residuals the
// memory of the previous call's residuals, if there are any.
std::vector<Outcome> RunOnAll(Team& team, Team::Program& program, size_t site,
                              const std::vector<Tree>& operands, bool in_place,
                              const std::vector<Tree>& residuals_in = {}) {
  const int64_t run_id = team.NextRunId();
  std::vector<Outcome> outcomes(operands.size());
  team.OnRanks([&](int rank) {
    Tree in = operands[rank], out = residuals_in.empty() ? in : residuals_in[rank], lost = out;
    const OpSpec& spec = program.At(rank, site).spec;
    const int64_t blocks = spec.collective == Collective::kReduceScatter ? team.ranks : 1;
    for (const auto& [tree, parts] : {std::pair{&out, blocks}, std::pair{&lost, int64_t{1}}}) {
      for (Array& array : *tree) {
        array.bytes.assign(array.bytes.size() / static_cast<size_t>(parts), std::byte{0xa5});
      }
    }
    std::vector<Array*> inputs, results;
    for (Array& array : in) inputs.push_back(&array);
    Tree& reduced = in_place && blocks == 1 && in[0].dtype == out[0].dtype ? in : out;
    for (Array& array : reduced) results.push_back(&array);
    Tree before = residuals_in.empty() ? Tree() : residuals_in[rank];
    const bool over = in_place && !residuals_in.empty();
    if (spec.feedback) {
      for (Array& array : over ? before : lost) results.push_back(&array);
    }
    Call call = CallOf(inputs, results, run_id);
    std::vector<Array*> residuals;
    for (Array& array : before) residuals.push_back(&array);
    call.residuals_in = CallOf(residuals, {}, run_id).inputs;
    CHECK_OK(team.Run(rank, program.At(rank, site), std::move(call)));
    outcomes[rank] = {reduced, over ? before : lost};
  });
  return outcomes;
}

// The largest difference between the sum of the steps' results and the exact sum.
double WorstError(Team& team, DType dtype, const OpSpec& spec, int steps, bool compare) {
  OpSpec plain = spec;
  plain.feedback = false;
  Team::Program program = team.Compile(std::vector<OpSpec>{spec, plain});
  const double share = spec.mean ? 1.0 / team.ranks : 1.0;
  const bool scatters = spec.collective == Collective::kReduceScatter;
  const int rows = scatters ? team.ranks : 1;
  std::vector<Tree> residuals(static_cast<size_t>(team.ranks));
  std::vector<Values> missing;  // expected minus received
  for (int64_t count : kCounts) missing.emplace_back(static_cast<size_t>(count * rows));
  auto add = [&](const Tree& tree, double times, int row = 0) {
    for (size_t i = 0; i < tree.size(); ++i) {
      const Values values = FromArray(tree[i]);
      double* const at = missing[i].data() + row * kCounts[i];
      for (size_t j = 0; j < values.size(); ++j) at[j] += times * values[j];
    }
  };
  for (int step = 0; step < steps; ++step) {
    std::vector<Tree> operands;
    for (int rank = 0; rank < team.ranks; ++rank) {
      Tree values = RandomTree(dtype, static_cast<uint32_t>(100 * step + rank), rows);
      add(values, share);
      operands.push_back(step == 0 ? values : Add(values, residuals[rank]));
    }
    const bool in_place = step % 2 == 1 && !scatters;
    const int64_t before = SentBytes(team, spec.collective);
    const std::vector<Outcome> outcomes = RunOnAll(team, program, 0, operands, in_place);
    const int64_t sent = SentBytes(team, spec.collective) - before;
    const std::vector<Outcome> expected = RunOnAll(team, program, 1, operands, in_place);
    CHECK_EQ(SentBytes(team, spec.collective) - before, 2 * sent);
    for (int rank = 0; rank < team.ranks; ++rank) {
      if (!scatters) CHECK(outcomes[rank].reduced == outcomes[0].reduced);
      if (compare) CHECK(outcomes[rank].reduced == expected[rank].reduced);
      residuals[rank] = outcomes[rank].lost;
    }
    for (int row = 0; row < rows; ++row) add(outcomes[row].reduced, -1, row);
  }
  for (const Tree& residual : residuals) add(residual, -share);
  double worst = 0;
  for (const Values& values : missing) {
    for (double value : values) {
      // NaN counts as the largest error.
      worst = std::fabs(value) <= worst ? worst : std::fabs(value);
    }
  }
  return worst;
}

TEST(engine_feedback_results_and_residuals_sum_to_the_operands) {
  for (int ranks : {1, 2, 3, 5, 8}) {
    for (Style style : testing::kStyles) {
      Team team(style, ranks);
      team.SetOption("chunk_bytes", "4096");
      for (const std::string codec :
           {"int8", "int4:rounding=stochastic", "onebit", "topk:density=0.1"}) {
        for (const std::string& algorithm : Algorithms()) {
          for (bool mean : {false, true}) {
            const OpSpec spec = SpecOf(codec, algorithm, mean, true);
            const bool same = codec.find("stochastic") == std::string::npos;
            const double worst = WorstError(team, DType::kFloat32, spec, 4, same);
            if (worst < 1e-4) continue;
            CHECK_EQ(spec.ToString() + " on " + std::to_string(ranks) + " ranks: off by " +
                         std::to_string(worst),
                     "");
          }
        }
      }
    }
  }
}

// Each rank keeps the residuals of its contributions to all blocks, also for partial sums around a ring.
TEST(engine_feedback_of_reduce_scatter_sums_to_the_operands) {
  for (int ranks : {1, 2, 3, 8}) {
    for (Style style : testing::kStyles) {
      Team team(style, ranks);
      team.SetOption("chunk_bytes", "4096");
      for (const std::string codec :
           {"bf16:rounding=stochastic", "onebit", "topk:density=0.1"}) {
        for (const std::string& algorithm : Algorithms(Collective::kReduceScatter)) {
          for (bool mean : {false, true}) {
            const OpSpec spec = ScatterSpecOf(codec, algorithm, mean);
            const bool same = codec.find("stochastic") == std::string::npos;
            const double worst = WorstError(team, DType::kFloat32, spec, 3, same);
            if (worst < 1e-4) continue;
            CHECK_EQ(spec.ToString() + " on " + std::to_string(ranks) + " ranks: off by " +
                         std::to_string(worst),
                     "");
          }
        }
      }
    }
  }
}

TEST(engine_feedback_supports_all_floating_dtypes) {
  Team team(Style::kDevices, 3);
  const std::pair<DType, double> tolerances[] = {{DType::kFloat64, 1e-12},
                                                 {DType::kFloat16, 0.1},
                                                 {DType::kBFloat16, 0.5}};
  for (const std::string codec : {"int4", "bf16", "topk:density=0.1"}) {
    for (const std::string& algorithm : Algorithms()) {
      for (const auto& [dtype, tolerance] : tolerances) {
        const double worst =
            WorstError(team, dtype, SpecOf(codec, algorithm, true, true), 3, true);
        CHECK(worst < tolerance);
      }
    }
    for (const std::string& algorithm : Algorithms(Collective::kReduceScatter)) {
      for (const auto& [dtype, tolerance] : tolerances) {
        CHECK(WorstError(team, dtype, ScatterSpecOf(codec, algorithm, true), 3, true) < tolerance);
      }
    }
  }
}

// The engine's sum of operands and residuals gives the same result as operands that are already summed.
void CheckCarries(Team& team, DType dtype, DType residual_dtype, const OpSpec& plain) {
  OpSpec adds_residual = plain;
  adds_residual.adds_residual = true;
  Team::Program program = team.Compile(std::vector<OpSpec>{plain, adds_residual});
  const bool scatters = plain.collective == Collective::kReduceScatter;
  const int rows = scatters ? team.ranks : 1;
  std::vector<Tree> operands, residuals, sums;
  for (int rank = 0; rank < team.ranks; ++rank) {
    operands.push_back(RandomTree(dtype, static_cast<uint32_t>(rank), rows));
    residuals.push_back(RandomTree(residual_dtype, static_cast<uint32_t>(1000 + rank), rows));
    sums.push_back(Add(residuals[rank], operands[rank]));
  }
  const std::vector<Outcome> expected = RunOnAll(team, program, 0, sums, false);
  for (bool in_place : {false, true}) {
    const auto outcomes = RunOnAll(team, program, 1, operands, in_place, residuals);
    for (int rank = 0; rank < team.ranks; ++rank) {
      CHECK(outcomes[rank].reduced == expected[rank].reduced);
      if (outcomes[rank].lost == expected[rank].lost) continue;
      CHECK_EQ(adds_residual.ToString() + " on " + std::to_string(team.ranks) + ": residuals", "");
    }
  }
}

TEST(engine_feedback_adds_residuals_of_earlier_steps) {
  for (int ranks : {1, 2, 3, 5}) {
    for (Style style : testing::kStyles) {
      Team team(style, ranks);
      team.SetOption("chunk_bytes", "4096");
      for (const std::string codec : {"int4", "onebit", "topk:density=0.1", "lossless", "raw"}) {
        for (const auto& [dtype, residual] : {std::pair{DType::kFloat32, DType::kFloat32},
                                              std::pair{DType::kBFloat16, DType::kBFloat16},
                                              std::pair{DType::kBFloat16, DType::kFloat32},
                                              std::pair{DType::kFloat16, DType::kFloat32}}) {
          for (const std::string& algorithm : Algorithms()) {
            CheckCarries(team, dtype, residual, SpecOf(codec, algorithm, true, true));
          }
          for (const std::string& algorithm : Algorithms(Collective::kReduceScatter)) {
            CheckCarries(team, dtype, residual, ScatterSpecOf(codec, algorithm, true));
          }
        }
      }
    }
  }
}

TEST(engine_feedback_refuses_residuals_of_other_sizes) {
  Team team(Style::kDevices, 2);
  OpSpec adds_residual = SpecOf("int8", "auto", false, true);
  adds_residual.adds_residual = true;
  OpSpec exact = adds_residual;
  exact.feedback = false;
  const std::pair<OpSpec, int64_t> cases[] = {{adds_residual, 8}, {adds_residual, 0}, {exact, 9},
                                              {SpecOf("int8", "auto", false, true), 9}};
  for (const auto& [spec, count] : cases) {
    Team::Program program = team.Compile(std::vector<OpSpec>{spec});
    const int64_t run_id = team.NextRunId();
    team.OnRanks([&, &spec = spec, count = count](int rank) {
      Array in(DType::kFloat32, 9, 1), out(DType::kFloat32, 9, 1), lost(DType::kFloat32, 9, 1);
      Array before(DType::kFloat32, count, 1);
      std::vector<Array*> results = {&out};
      if (spec.feedback) results.push_back(&lost);
      Call call = CallOf({&in}, results, run_id);
      if (count > 0) call.residuals_in = CallOf({&before}, {}, run_id).inputs;
      const Status status = team.Run(rank, program.At(rank, 0), std::move(call));
      CHECK(status.code() == Code::kInvalidArgument);
      CHECK(status.message().find("needs feedback and a residual of its size") != std::string::npos);
    });
  }
}

TEST(engine_feedback_of_lossless_codecs_has_zero_residuals) {
  for (const std::string codec : {"raw", "lossless"}) {
    Team team(Style::kProcesses, 3);
    Team::Program program =
        team.Compile(std::vector<OpSpec>{SpecOf(codec, "two_shot", true, true)});
    std::vector<Tree> operands;
    for (int rank = 0; rank < 3; ++rank) operands.push_back(RandomTree(DType::kFloat32, rank));
    for (const Outcome& outcome : RunOnAll(team, program, 0, operands, false)) {
      for (const Array& array : outcome.lost) {
        for (std::byte b : array.bytes) {
          if (b != std::byte{0}) CHECK_EQ("a loss of " + codec, "");
        }
      }
    }
  }
}

TEST(engine_feedback_drops_residuals_that_are_not_finite) {
  for (const std::string& algorithm : Algorithms()) {
    for (DType dtype : {DType::kFloat32, DType::kFloat16}) {
      Team team(Style::kDevices, 3);
      Team::Program program =
          team.Compile(std::vector<OpSpec>{SpecOf("int8", algorithm, true, true)});
      std::vector<Tree> operands;
      for (int rank = 0; rank < 3; ++rank) operands.push_back(RandomTree(dtype, rank));
      Values values = FromArray(operands[1][0]);
      values[7] = std::numeric_limits<double>::infinity();
      operands[1][0] = ToArray(dtype, values);
      for (const Outcome& outcome : RunOnAll(team, program, 0, operands, false)) {
        CHECK(!std::isfinite(FromArray(outcome.reduced[0])[7]));
        for (double lost : FromArray(outcome.lost[0])) CHECK(std::isfinite(lost));
      }
    }
  }
}

TEST(engine_feedback_refuses_other_operations_than_sums) {
  Team team(Style::kDevices, 2);
  OpSpec maximum = SpecOf("int8", "auto", false, true);
  maximum.reduce_op = ReduceOp::kMax;
  OpSpec bcast = SpecOf("int8", "auto", false, true);
  bcast.collective = Collective::kBcast;
  bcast.root = 0;
  OpSpec scattered_maximum = maximum;
  scattered_maximum.collective = Collective::kReduceScatter;
  const OpSpec sum = SpecOf("int8", "auto", false, true);
  const std::pair<OpSpec, DType> cases[] = {{maximum, DType::kFloat32},
                                            {scattered_maximum, DType::kFloat32},
                                            {bcast, DType::kFloat32},
                                            {sum, DType::kInt32},
                                            {ScatterSpecOf("int8", "auto", false), DType::kInt32}};
  for (const auto& [spec, dtype] : cases) {
    Team::Program program = team.Compile(std::vector<OpSpec>{spec});
    const int64_t run_id = team.NextRunId();
    team.OnRanks([&, dtype = dtype](int rank) {
      Array in(dtype, 9, 1), out(dtype, 9, 1), lost(dtype, 9, 1);
      const Status status =
          team.Run(rank, program.At(rank, 0), CallOf({&in}, {&out, &lost}, run_id));
      CHECK(status.code() == Code::kInvalidArgument);
      CHECK(status.message().find("with feedback") != std::string::npos);
    });
  }
}

}  // namespace
}  // namespace jaxccomp
