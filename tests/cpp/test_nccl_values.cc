// Every collective of NCCL's, against what it is to give, with the fake.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "check.h"
#include "common/half.h"
#include "nccl_team.h"

namespace jaxccomp {
namespace {

using testing::Array;
using testing::ArrayOf;
using testing::FakeNccl;
using testing::NcclTeam;
using testing::OnDevice;
using testing::Pending;
using testing::RankArrays;
using testing::Style;

constexpr int64_t kCount = 7;

// Small whole numbers: exact in every type that holds them, whatever the order of a sum.
int Value(int rank, int64_t i) { return static_cast<int>((rank * 3 + i * 5) % 6) + 1; }

template <typename T>
Array Made(DType dtype, int64_t rows, int64_t row_elements, const std::function<int(int64_t)>& f) {
  Array array(dtype, rows, row_elements);
  std::vector<T> values(static_cast<size_t>(rows * row_elements));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(f(static_cast<int64_t>(i)));
  CopyBytes(array.bytes.data(), values.data(), static_cast<int64_t>(array.bytes.size()));
  return array;
}

struct Case {
  OpSpec spec;
  std::function<Array(int rank, int ranks)> input, output;
};

OpSpec Spec(Collective collective) {
  OpSpec spec;
  spec.collective = collective;
  spec.nccl = true;
  spec.shapes = "values";
  return spec;
}

template <typename T>
Case Reducing(Collective collective, DType dtype, ReduceOp op, bool mean) {
  OpSpec spec = Spec(collective);
  spec.reduce_op = op;
  spec.mean = mean;
  spec.shapes = std::string(Name(dtype));
  if (collective == Collective::kReduce) spec.root = 0;
  const bool scatters = collective == Collective::kReduceScatter;
  const auto reduced = [op, mean](int ranks, int64_t i) {
    int64_t result = mean ? 0 : Value(0, i);
    for (int r = mean ? 0 : 1; r < ranks; ++r) {
      const int64_t v = Value(r, i);
      if (op == ReduceOp::kSum) result += v;
      if (op == ReduceOp::kProd) result *= v;
      if (op == ReduceOp::kMin) result = std::min(result, v);
      if (op == ReduceOp::kMax) result = std::max(result, v);
    }
    return static_cast<double>(result) / (mean ? ranks : 1);
  };
  return {spec,
          [=](int rank, int ranks) {
            return Made<T>(dtype, scatters ? ranks : kCount, scatters ? kCount : 1,
                           [=](int64_t i) { return Value(rank, i); });
          },
          [=](int rank, int ranks) {
            Array array(dtype, kCount, 1);
            std::vector<T> values(kCount);
            for (int64_t i = 0; i < kCount; ++i) {
              const double v = reduced(ranks, scatters ? rank * kCount + i : i);
              const bool zero = collective == Collective::kReduce && rank != 0;
              values[static_cast<size_t>(i)] = zero ? T{} : static_cast<T>(v);
            }
            CopyBytes(array.bytes.data(), values.data(),
                               static_cast<int64_t>(array.bytes.size()));
            return array;
          }};
}

Array Moved(int64_t rows, const std::function<int(int64_t row, int64_t i)>& f) {
  return Made<int16_t>(DType::kInt16, rows, kCount,
                       [&](int64_t i) { return f(i / kCount, i % kCount); });
}

std::vector<Case> Moving(int ranks) {
  const int root = ranks - 1;
  std::vector<Case> cases;
  const auto one = [](int rank, int) {
    return Moved(1, [=](int64_t, int64_t i) { return Value(rank, i); });
  };
  const auto many = [](int rank, int n) {
    return Moved(n, [=](int64_t row, int64_t i) { return 100 * rank + 10 * static_cast<int>(row) + static_cast<int>(i); });
  };
  OpSpec spec = Spec(Collective::kBcast);
  spec.root = root;
  cases.push_back({spec, one, [=](int, int n) { return one(root, n); }});
  cases.push_back({Spec(Collective::kAllgather), one, [](int, int n) {
                     return Moved(n, [](int64_t row, int64_t i) { return Value(static_cast<int>(row), i); });
                   }});
  spec = Spec(Collective::kGather);
  spec.root = root;
  cases.push_back({spec, one, [=](int rank, int n) {
                     return Moved(n, [=](int64_t row, int64_t i) {
                       return rank == root ? Value(static_cast<int>(row), i) : 0;
                     });
                   }});
  spec = Spec(Collective::kScatter);
  spec.root = root;
  cases.push_back({spec, many, [=](int rank, int) {
                     return Moved(1, [=](int64_t, int64_t i) {
                       return 100 * root + 10 * rank + static_cast<int>(i);
                     });
                   }});
  cases.push_back({Spec(Collective::kAlltoall), many, [](int rank, int n) {
                     return Moved(n, [=](int64_t row, int64_t i) {
                       return 100 * static_cast<int>(row) + 10 * rank + static_cast<int>(i);
                     });
                   }});
  // Everyone to the next one but the last, who sends to nobody; the first gets zeros.
  spec = Spec(Collective::kPermute);
  for (int r = 0; r + 1 < ranks; ++r) spec.pairs.insert(spec.pairs.end(), {r, r + 1});
  cases.push_back({spec, one, [](int rank, int) {
                     return Moved(1, [=](int64_t, int64_t i) {
                       return rank == 0 ? 0 : Value(rank - 1, i);
                     });
                   }});
  return cases;
}

std::vector<Case> Cases(int ranks) {
  std::vector<Case> cases = Moving(ranks);
  for (Collective collective :
       {Collective::kAllreduce, Collective::kReduce, Collective::kReduceScatter}) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax}) {
      cases.push_back(Reducing<float>(collective, DType::kFloat32, op, false));
      cases.push_back(Reducing<int64_t>(collective, DType::kInt64, op, false));
      cases.push_back(Reducing<uint8_t>(collective, DType::kUInt8, op, false));
    }
    cases.push_back(Reducing<double>(collective, DType::kFloat64, ReduceOp::kSum, true));
  }
  return cases;
}

// Each case a program of its own, run twice; then all of them as one program.
TEST(nccl_values) {
  for (Style style : testing::kStyles) {
    for (int ranks : {1, 2, 3, 4}) {
      NcclTeam team(style, ranks);
      std::vector<Case> cases = Cases(ranks);
      std::vector<std::vector<Case>> programs;
      for (const Case& c : cases) programs.push_back({c});
      programs.push_back(cases);
      std::vector<NcclTeam::Program> compiled;
      for (const auto& program : programs) {
        std::vector<OpSpec> specs;
        for (const Case& c : program) specs.push_back(c.spec);
        compiled.push_back(team.Compile(specs));
      }
      team.on.team->OnRanks([&](int rank) {
        for (size_t p = 0; p < programs.size(); ++p) {
          for (int repeat = 0; repeat < 2; ++repeat) {
            std::vector<RankArrays> arrays;
            for (const Case& c : programs[p]) {
              arrays.push_back({.inputs = {c.input(rank, ranks)}, .outputs = {}, .refs = {}});
              arrays.back().outputs = {c.output(rank, ranks)};
              std::fill(arrays.back().outputs[0].bytes.begin(),
                        arrays.back().outputs[0].bytes.end(), std::byte{0x5a});
            }
            std::vector<std::unique_ptr<OnDevice>> held;
            std::vector<Pending> pending;
            CHECK_OK(team.Launch(rank, compiled[p], &arrays,
                                 static_cast<int64_t>(2 * p + repeat + 1), &held, &pending));
            team.on.streams[rank]->Finish();
            for (size_t i = 0; i < arrays.size(); ++i) {
              if (!CHECK(arrays[i].outputs[0] == programs[p][i].output(rank, ranks))) {
                std::fprintf(stderr, "  %s on rank %d of %d\n",
                             programs[p][i].spec.ToString().c_str(), rank, ranks);
              }
            }
          }
        }
      });
      for (const auto& program : compiled) team.Forget(program);
    }
  }
}

// Messages between two ranks, and an exchange, in program order.
TEST(nccl_messages) {
  constexpr int kRanks = 3;
  NcclTeam team(Style::kProcesses, kRanks);
  std::vector<std::vector<OpSpec>> specs(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    OpSpec around = Spec(Collective::kSendrecv);
    around.pairs = {(rank + 1) % kRanks, (rank + kRanks - 1) % kRanks};
    specs[rank].push_back(around);
    OpSpec message = Spec(rank == 0 ? Collective::kSend : Collective::kRecv);
    message.pairs = {rank == 0 ? 2 : 0};
    message.ordered = true;
    if (rank == 1) continue;   // takes no part
    specs[rank].push_back(message);
  }
  NcclTeam::Program program = team.Compile(specs);
  team.on.team->OnRanks([&](int rank) {
    std::vector<RankArrays> arrays;
    for (size_t i = 0; i < specs[rank].size(); ++i) {
      const auto mine = [&](int64_t, int64_t at) { return Value(rank + static_cast<int>(i), at); };
      arrays.push_back({.inputs = {Moved(1, mine)}, .outputs = {Moved(1, [](int64_t, int64_t) { return -1; })}, .refs = {}});
    }
    std::vector<std::unique_ptr<OnDevice>> held;
    std::vector<Pending> pending;
    CHECK_OK(team.Launch(rank, program, &arrays, 1, &held, &pending));
    team.on.streams[rank]->Finish();
    const int source = (rank + kRanks - 1) % kRanks;
    CHECK(arrays[0].outputs[0] == Moved(1, [&](int64_t, int64_t i) { return Value(source, i); }));
    if (rank == 1) return;
    CHECK(arrays[1].outputs[0] == Moved(1, [&](int64_t, int64_t i) { return Value(1, i); }));
  });
  team.Forget(program);
  // A row for each call site.
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<CallRow> rows = team.BackendOf(rank).GetCallLog().rows;
    CHECK_EQ(rows.size(), specs[rank].size());
    for (const CallRow& row : rows) {
      CHECK(row.collective == Collective::kSendrecv || row.collective == specs[rank][1].collective);
      CHECK_EQ(row.counts.calls, 1);
      CHECK(row.counts.sum.operand_bytes > 0);
      CHECK_EQ(row.counts.sum.seconds, 0.0);
    }
  }
  team.BackendOf(0).ResetCounts();
  CHECK(team.BackendOf(0).GetCallLog().rows.empty());
}

TEST(nccl_says_what_it_does_not_have) {
  for (Collective collective : {Collective::kScan, Collective::kBarrier, Collective::kAlltoallv}) {
    auto made = nccl::NcclCallSite::Make(Spec(collective));
    CHECK(!made.ok());
    CHECK_EQ(made.status().code(), Code::kUnimplemented);
  }
  OpSpec spec = Spec(Collective::kAllreduce);
  spec.reduce_op = ReduceOp::kXor;
  const Status bits = nccl::CheckSupported(spec, {});
  CHECK(bits.message().find("sum, mean, prod, min and max") != std::string::npos);
  spec.reduce_op = ReduceOp::kSum;
  CHECK(!nccl::CheckSupported(spec, {{nullptr, DType::kInt16, 1, 2}}).ok());
  CHECK_OK(nccl::CheckSupported(spec, {{nullptr, DType::kComplex64, 1, 8}}));
  spec.reduce_op = ReduceOp::kProd;
  CHECK(!nccl::CheckSupported(spec, {{nullptr, DType::kComplex64, 1, 8}}).ok());
}

}  // namespace
}  // namespace jaxccomp
