// backend="mpi": each rank starts operations in a different order, and the library matches them by order. No operation
// may deadlock.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "fake_library.h"
#include "patience.h"
#include "team.h"

namespace jaxccomp {
namespace {

using testing::Array;
using testing::CallOf;
using testing::Contains;
using testing::FakeLibraries;
using testing::FakeLibrary;
using testing::Int32s;
using testing::Pending;
using testing::SpecOf;
using testing::Style;
using testing::Team;
using testing::ValuesOf;

constexpr Collective kAll[] = {Collective::kBcast,   Collective::kAllreduce,     Collective::kReduce,
                               Collective::kGather,  Collective::kAllgather,     Collective::kScatter,
                               Collective::kAlltoall, Collective::kReduceScatter, Collective::kScan,
                               Collective::kExscan,  Collective::kBarrier};

OpSpec ByMpi(Collective collective, int64_t count, int64_t root = -1) {
  OpSpec spec = SpecOf(collective, count, Info(collective).rooted ? std::max<int64_t>(root, 0) : -1);
  spec.mpi = true;
  return spec;
}

struct MpiTeam : Team {
  explicit MpiTeam(int ranks) : Team(Style::kProcesses, ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      EngineOf(rank).UseLibrary(std::make_unique<FakeLibrary>(libraries, rank));
    }
  }
  const std::shared_ptr<FakeLibraries> libraries = std::make_shared<FakeLibraries>();
};

// Value i of block `block` of rank `rank` in an operation.
int32_t Value(size_t operation, int rank, int block, int64_t i) {
  return static_cast<int32_t>(operation * 1000 + static_cast<size_t>(rank * 100 + block * 10) +
                              static_cast<size_t>(i));
}

struct Buffers {
  Buffers(const OpSpec& spec, size_t operation, int rank, int ranks) {
    const auto count = static_cast<int64_t>(std::stoll(spec.shapes.substr(6)));
    const CollectiveInfo& info = Info(spec.collective);
    const int in_blocks = info.input == Blocks::kPerRank ? ranks : 1;
    in = Array(DType::kInt32, in_blocks, count);
    out = Array(DType::kInt32, info.output == Blocks::kPerRank ? ranks : 1, count);
    auto* const values = reinterpret_cast<int32_t*>(in.bytes.data());
    for (int block = 0; block < in_blocks; ++block) {
      for (int64_t i = 0; i < count; ++i) values[block * count + i] = Value(operation, rank, block, i);
    }
    const auto sum = [&](int block, int64_t i, int first, int end) {
      int32_t total = 0;
      for (int r = first; r < end; ++r) total += Value(operation, r, block, i);
      return total;
    };
    const bool reverse = spec.reverse;
    const auto prefix = [&](int64_t i, int own) {
      return reverse ? sum(0, i, rank + 1 - own, ranks) : sum(0, i, 0, rank + own);
    };
    const int root = static_cast<int>(spec.root);
    for (int block = 0; block < (info.output == Blocks::kPerRank ? ranks : 1); ++block) {
      for (int64_t i = 0; i < count; ++i) {
        int32_t value = 0;
        switch (spec.collective) {
          case Collective::kBcast: value = Value(operation, root, 0, i); break;
          case Collective::kAllreduce: value = sum(0, i, 0, ranks); break;
          case Collective::kReduce: value = rank == root ? sum(0, i, 0, ranks) : 0; break;
          case Collective::kGather: value = rank == root ? Value(operation, block, 0, i) : 0; break;
          case Collective::kAllgather: value = Value(operation, block, 0, i); break;
          case Collective::kScatter: value = Value(operation, root, rank, i); break;
          case Collective::kAlltoall: value = Value(operation, block, rank, i); break;
          case Collective::kReduceScatter: value = sum(rank, i, 0, ranks); break;
          case Collective::kScan: value = prefix(i, 1); break;
          case Collective::kExscan: value = prefix(i, 0); break;
          default: value = Value(operation, rank, block, i);   // a barrier passes its operand on
        }
        expected.push_back(value);
      }
    }
  }
  Array in, out;
  std::vector<int32_t> expected;
};

TEST(mpi_library_is_called_in_one_order_on_all_ranks) {
  for (int ranks : {2, 3, 5, 8}) {
    MpiTeam team(ranks);
    std::vector<OpSpec> specs;
    for (const Collective collective : kAll) {
      for (const int64_t count : {0, 3, 5000}) specs.push_back(ByMpi(collective, count, ranks - 1));
    }
    for (const Collective collective : {Collective::kScan, Collective::kExscan}) {
      specs.push_back(ByMpi(collective, 4));
      specs.back().reverse = true;
    }
    Team::Program program = team.Compile(specs);
    for (int launch = 0; launch < 6; ++launch) {
      const int64_t run_id = team.NextRunId();
      team.OnRanks([&](int rank) {
        std::minstd_rand random(static_cast<uint32_t>(100 * launch + rank));
        std::vector<size_t> order(specs.size());
        std::iota(order.begin(), order.end(), size_t{0});
        std::shuffle(order.begin(), order.end(), random);
        std::vector<Buffers> buffers;
        for (size_t i = 0; i < specs.size(); ++i) buffers.emplace_back(specs[i], i, rank, ranks);
        std::vector<Pending> pending(specs.size());
        for (const size_t i : order) {
          // Some ranks are late.
          if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
          pending[i] = team.Start(rank, program.At(rank, i),
                                  CallOf({&buffers[i].in}, {&buffers[i].out}, run_id));
        }
        for (size_t i = 0; i < specs.size(); ++i) {
          CHECK_OK(pending[i].Get());
          CHECK(ValuesOf<int32_t>(buffers[i].out) == buffers[i].expected);
        }
      });
    }
    CHECK_EQ(team.libraries->made(), 2);   // one of them for the ranks in reverse order
  }
}

// Several tensors are several collectives of the library, in their order. Results may share the operands' memory.
TEST(mpi_tensors_of_one_operation_are_called_in_order) {
  MpiTeam team(4);
  OpSpec spec = ByMpi(Collective::kAllreduce, 3);
  spec.shapes = "int32[3], int32[2]";
  Team::Program program = team.Compile({spec});
  team.OnRanks([&](int rank) {
    Array a = Int32s({rank, 1, 2}), b = Int32s({10, rank});
    CHECK_OK(team.Run(rank, program.At(rank, 0), CallOf({&a, &b}, {&a, &b}, 1)));
    CHECK(ValuesOf<int32_t>(a) == (std::vector<int32_t>{6, 4, 8}));
    CHECK(ValuesOf<int32_t>(b) == (std::vector<int32_t>{40, 6}));
  });
  CHECK_EQ(team.libraries->begun(), 8);
}

// Each communicator has its own order.
TEST(mpi_communicators_have_independent_orders) {
  MpiTeam team(4);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK_OK(team.EngineOf(rank).membership().AddCommunicator("others", {3, 2, 1, 0}));
    CHECK_OK(team.EngineOf(rank).membership().AddCommunicator(rank < 2 ? "low" : "high",
                                                 rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3}));
  }
  Team::Program program = team.Compile([&](int rank) {
    std::vector<OpSpec> specs(3, ByMpi(Collective::kAllreduce, 2));
    specs[1].communicator = "others";
    specs[2].communicator = rank < 2 ? "low" : "high";
    return specs;
  });
  for (int launch = 1; launch <= 5; ++launch) {
    team.OnRanks([&](int rank) {
      std::vector<Array> in, out;
      for (int i = 0; i < 3; ++i) {
        in.push_back(Int32s({rank, i}));
        out.push_back(Int32s({-1, -1}));
      }
      std::vector<Pending> pending;
      for (int k = 0; k < 3; ++k) {
        const auto i = static_cast<size_t>((k + rank) % 3);
        pending.push_back(team.Start(rank, program.At(rank, i), CallOf({&in[i]}, {&out[i]}, launch)));
      }
      for (const Pending& each : pending) CHECK_OK(each.Get());
      CHECK(ValuesOf<int32_t>(out[0]) == (std::vector<int32_t>{6, 0}));
      CHECK(ValuesOf<int32_t>(out[1]) == (std::vector<int32_t>{6, 4}));
      CHECK(ValuesOf<int32_t>(out[2]) == (std::vector<int32_t>{rank < 2 ? 1 : 5, 4}));
    });
  }
  CHECK_EQ(team.libraries->made(), 4);
}

Status RunOne(Team& team, Team::Program& program, int rank, int64_t run_id, size_t site = 0) {
  Array in = Int32s({rank}), out = Int32s({-1});
  return team.Run(rank, program.At(rank, site), CallOf({&in}, {&out}, run_id));
}

// An operation is passed to the library only after all ranks have entered it, so a missing rank leaves no work there.
TEST(mpi_library_is_not_called_if_a_member_is_missing) {
  MpiTeam team(3);
  team.SetOption("timeout_seconds", testing::ScaledSeconds(0.5));
  Team::Program program = team.Compile({ByMpi(Collective::kAllreduce, 1)});
  team.OnRanks([&](int rank) { CHECK_OK(RunOne(team, program, rank, 1)); });
  team.OnRanks([&](int rank) {
    if (rank == 1) return;
    const Status status = RunOne(team, program, rank, 2);
    CHECK(status.code() == Code::kDeadlineExceeded || status.code() == Code::kAborted);
    Contains(status, "rank 1 of 'world'");
    Contains(status, "backend=mpi");
  });
  CHECK_EQ(team.libraries->begun(), 3);
  for (int rank = 0; rank < 3; ++rank) CHECK(!team.libraries->is_frozen(rank));
}

// Differences between ranks, even in the backend alone, are rejected before the library is called.
TEST(mpi_mismatch_is_refused_before_the_library_is_called) {
  for (const bool native : {false, true}) {
    MpiTeam team(3);
    Team::Program program = team.Compile([&](int rank) {
      OpSpec spec = ByMpi(Collective::kAllreduce, 1);
      if (rank == 2 && native) spec.mpi = false;
      if (rank == 2 && !native) spec = ByMpi(Collective::kBcast, 1);
      return std::vector<OpSpec>{spec};
    });
    team.OnRanks([&](int rank) {
      const Status status = RunOne(team, program, rank, 1);
      CHECK(status.code() == Code::kFailedPrecondition || status.code() == Code::kAborted);
      Contains(status, "backend=mpi");
      if (!native) Contains(status, "bcast");
    });
    CHECK_EQ(team.libraries->begun(), 0);
  }
}

// A library call cannot be cancelled. After an operation has failed during one, its rank stops using the library and
// every other transport, and every rank gets an error.
TEST(mpi_library_that_hangs_raises_on_all_ranks) {
  MpiTeam team(2);
  team.SetOption("timeout_seconds", testing::ScaledSeconds(0.5));
  team.libraries->stands_still = true;
  Team::Program program = team.Compile({ByMpi(Collective::kAllreduce, 1)});
  team.OnRanks([&](int rank) {
    const Status status = RunOne(team, program, rank, 1);
    CHECK(status.code() == Code::kDeadlineExceeded || status.code() == Code::kAborted);
    CHECK(team.libraries->is_frozen(rank));
    CHECK(!RunOne(team, program, rank, 2).ok());
  });
  CHECK_EQ(team.libraries->begun(), 2);
}

// The engine shuts down while the library runs an operation: the caller gets an error.
TEST(mpi_call_returns_an_error_if_the_engine_shuts_down) {
  MpiTeam team(2);
  team.libraries->stands_still = true;
  Team::Program program = team.Compile({ByMpi(Collective::kAllreduce, 1)});
  Array in[2] = {Int32s({1}), Int32s({2})}, out[2] = {Int32s({0}), Int32s({0})};
  Pending pending[2];
  for (int rank = 0; rank < 2; ++rank) {
    pending[rank] = team.Start(rank, program.At(rank, 0), CallOf({&in[rank]}, {&out[rank]}, 1));
  }
  while (team.libraries->begun() < 2) std::this_thread::yield();
  team.OnRanks([&](int rank) { team.EngineOf(rank).Shutdown(); });
  for (const Pending& each : pending) CHECK(!each.Get().ok());
  for (int rank = 0; rank < 2; ++rank) CHECK(team.libraries->is_frozen(rank));
}

TEST(mpi_communicator_error_is_reported) {
  MpiTeam team(3);
  team.libraries->refuses = true;
  Team::Program program = team.Compile({ByMpi(Collective::kAllreduce, 1)});
  team.OnRanks([&](int rank) {
    const Status status = RunOne(team, program, rank, 1);
    CHECK(!status.ok());
    Contains(status, "no more communicators");
  });
  CHECK_EQ(team.libraries->begun(), 0);
}

// An operation that all ranks have entered completes, independent of other waiting operations.
TEST(mpi_complete_operation_runs_before_waiting_ones) {
  MpiTeam team(3);
  Team::Program program =
      team.Compile({ByMpi(Collective::kAllreduce, 1), ByMpi(Collective::kAllgather, 1)});
  Array first_in[3] = {Int32s({1}), Int32s({2}), Int32s({3})}, first_out[3];
  Pending first[3];
  const auto start_first = [&](int rank) {
    first_out[rank] = Int32s({0});
    first[rank] = team.Start(rank, program.At(rank, 0), CallOf({&first_in[rank]}, {&first_out[rank]}, 1));
  };
  // The other ranks enter the first operation long before the second one; the last rank enters it long after.
  start_first(0);
  start_first(1);
  team.OnRanks([&](int rank) {
    Array in = Int32s({rank}), out(DType::kInt32, 3, 1);
    CHECK_OK(team.Run(rank, program.At(rank, 1), CallOf({&in}, {&out}, 1)));
    CHECK(ValuesOf<int32_t>(out) == (std::vector<int32_t>{0, 1, 2}));
  });
  CHECK(!first[0].IsOver());
  start_first(2);
  for (int rank = 0; rank < 3; ++rank) {
    CHECK_OK(first[rank].Get());
    CHECK(ValuesOf<int32_t>(first_out[rank]) == (std::vector<int32_t>{6}));
  }
}

TEST(mpi_refuses_unsupported_operations_codecs_and_devices) {
  MpiTeam team(2);
  OpSpec permute = ByMpi(Collective::kPermute, 1), encoded = ByMpi(Collective::kAllreduce, 1);
  permute.pairs = {1, 0};
  encoded.codec = "lossless";
  for (const auto& [spec, text] : {std::pair{permute, "no such operation"}, std::pair{encoded, "as they are"}}) {
    MpiTeam apart(2);
    Team::Program program = apart.Compile({spec});
    apart.OnRanks([&, expected = text](int rank) { Contains(RunOne(apart, program, rank, 1), expected); });
  }
  Team without(Style::kProcesses, 2);
  Team::Program program = without.Compile({ByMpi(Collective::kAllreduce, 1)});
  without.OnRanks([&](int rank) { Contains(RunOne(without, program, rank, 1), "mpiexec"); });
  Team devices(Style::kDevices, 2);
  devices.EngineOf(0).UseLibrary(std::make_unique<FakeLibrary>(team.libraries, 0));
  Team::Program on_devices = devices.Compile({ByMpi(Collective::kAllreduce, 1)});
  devices.OnRanks([&](int rank) { Contains(RunOne(devices, on_devices, rank, 1), "one process"); });
}

}  // namespace
}  // namespace jaxccomp
