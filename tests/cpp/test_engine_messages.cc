// Operations that differ by rank, through the whole engine: send, recv, sendrecv, ragged_alltoall.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "team.h"

namespace jaxccomp {
namespace {

using testing::Array;
using testing::CallOf;
using testing::Int32s;
using testing::Pending;
using testing::Team;
using testing::ValuesOf;

OpSpec MessageSpec(Collective collective, std::vector<int64_t> pairs, int64_t count,
                   int64_t tag = 0) {
  OpSpec spec;
  spec.collective = collective;
  spec.pairs = std::move(pairs);
  spec.tag = tag;
  spec.ordered = collective != Collective::kSendrecv;
  spec.shapes = "int32[" + std::to_string(count) + "]";
  return spec;
}

Array Message(int from, int to, int64_t tag, int number, int64_t count) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(),
            from * 1000003 + to * 50021 + static_cast<int32_t>(tag) * 307 + number * 11);
  return Int32s(values);
}

TEST(engine_send_and_recv_transfer_values_around_a_ring) {
  for (testing::Style style : testing::kStyles) {
    for (int ranks : {2, 3, 8}) {
      Team team(style, ranks);
      team.SetOption("chunk_bytes", "4096");
      // A ring in both directions and with two tags. Large messages wait until they are pulled.
      const std::vector<int64_t> counts = {0, 1, 700, 20001};
      auto specs = [&](int rank) {
        const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
        std::vector<OpSpec> all;
        for (int64_t count : counts) {
          all.push_back(MessageSpec(Collective::kSend, {next}, count, 0));
          all.push_back(MessageSpec(Collective::kSend, {next}, count, 5));
          all.push_back(MessageSpec(Collective::kSend, {previous}, count, 9));
          all.push_back(MessageSpec(Collective::kRecv, {previous}, count, 0));
          all.push_back(MessageSpec(Collective::kRecv, {previous}, count, 5));
          all.push_back(MessageSpec(Collective::kRecv, {next}, count, 9));
        }
        return all;
      };
      Team::Program program = team.Compile(specs);
      for (int launch = 1; launch <= 6; ++launch) {
        team.OnRanks([&](int rank) {
          const std::vector<OpSpec> mine = specs(rank);
          // Sites of one channel (peer, direction, tag) keep their order; the others are shuffled.
          std::vector<size_t> order;
          std::mt19937 random(static_cast<uint32_t>(launch * 64 + rank));
          std::vector<size_t> next_of(6, 0);
          while (order.size() < mine.size()) {
            const size_t channel = random() % 6;
            if (next_of[channel] < counts.size()) order.push_back(next_of[channel]++ * 6 + channel);
          }
          std::vector<Array> inputs(mine.size()), outputs(mine.size());
          std::vector<Pending> pending(mine.size());
          for (size_t i : order) {
            const OpSpec& spec = mine[i];
            const int64_t count = counts[i / 6];
            const int other = static_cast<int>(spec.pairs[0]);
            outputs[i] = Array(DType::kInt32, count, 1);
            inputs[i] = spec.collective == Collective::kSend
                            ? Message(rank, other, spec.tag, launch, count)
                            : Array(DType::kInt32, count, 1);
            pending[i] = team.Start(rank, program.At(rank, i),
                                    CallOf({&inputs[i]}, {&outputs[i]}, launch));
          }
          for (size_t i = 0; i < mine.size(); ++i) {
            if (!CHECK_OK(pending[i].Get())) return;
            const int other = static_cast<int>(mine[i].pairs[0]);
            const int64_t count = counts[i / 6], tag = mine[i].tag;
            CHECK(outputs[i] == (mine[i].collective == Collective::kSend
                                     ? inputs[i]
                                     : Message(other, rank, tag, launch, count)));
          }
        });
      }
    }
  }
}

TEST(engine_pipeline_of_different_programs_transfers_values) {
  // The first rank only sends, the last only receives, and then all take part in an allreduce.
  for (testing::Style style : testing::kStyles) {
    const int ranks = 5;
    Team team(style, ranks);
    auto specs = [&](int rank) {
      std::vector<OpSpec> all(1);
      all[0].collective = Collective::kAllreduce;
      all[0].shapes = "int32[300]";
      if (rank > 0) all.push_back(MessageSpec(Collective::kRecv, {rank - 1}, 300));
      if (rank + 1 < ranks) all.push_back(MessageSpec(Collective::kSend, {rank + 1}, 300));
      return all;
    };
    Team::Program program = team.Compile(specs);
    for (int launch = 1; launch <= 10; ++launch) {
      team.OnRanks([&](int rank) {
        Array held = Int32s(std::vector<int32_t>(300, launch)), got = held;
        size_t site = 1;
        if (rank > 0) {
          CHECK_OK(team.Run(rank, program.At(rank, site++), CallOf({&held}, {&got}, launch)));
          held = Int32s(std::vector<int32_t>(300, ValuesOf<int32_t>(got)[299] + 1));
        }
        if (rank + 1 < ranks) {
          CHECK_OK(team.Run(rank, program.At(rank, site), CallOf({&held}, {&got}, launch)));
        }
        CHECK_EQ(ValuesOf<int32_t>(held)[0], launch + rank);
        CHECK_OK(team.Run(rank, program.At(rank, 0), CallOf({&held}, {&got}, launch)));
        CHECK_EQ(ValuesOf<int32_t>(got)[7], ranks * launch + ranks * (ranks - 1) / 2);
      });
    }
  }
}

TEST(engine_sendrecv_exchanges_values) {
  for (testing::Style style : testing::kStyles) {
    for (int ranks : {1, 2, 5, 8}) {
      Team team(style, ranks);
      team.SetOption("chunk_bytes", "4096");
      const std::vector<int64_t> counts = {0, 3, 9001};
      auto partners = [&](int rank, size_t i) -> std::vector<int64_t> {
        const int64_t next = rank + 1 < ranks ? rank + 1 : -1, previous = rank - 1;
        if (i < counts.size()) return {(rank + 1) % ranks, (rank + ranks - 1) % ranks};
        return {previous, next};   // -1: no peer
      };
      Team::Program program = team.Compile([&](int rank) {
        std::vector<OpSpec> all;
        for (size_t i = 0; i < 2 * counts.size(); ++i) {
          all.push_back(MessageSpec(Collective::kSendrecv, partners(rank, i),
                                    counts[i % counts.size()], static_cast<int64_t>(i)));
        }
        return all;
      });
      for (int launch = 1; launch <= 3; ++launch) {
        team.OnRanks([&](int rank) {
          for (size_t i = 0; i < program.size(); ++i) {
            const auto pair = partners(rank, i);
            const int64_t count = counts[i % counts.size()];
            Array in = Message(rank, static_cast<int>(pair[0]), 0, launch, count);
            Array out(DType::kInt32, count, 1);
            CHECK_OK(team.Run(rank, program.At(rank, i), CallOf({&in}, {&out}, launch)));
            const int source = static_cast<int>(pair[1]);
            const Array zeros(DType::kInt32, count, 1, std::byte{0});
            CHECK(out == (source < 0 ? zeros : Message(source, rank, 0, launch, count)));
          }
        });
      }
    }
  }
}

// Rows of three int32: source, destination and number.
std::vector<int32_t> Row(int from, int to, int64_t number) {
  return {from, to, static_cast<int32_t>(number)};
}

TEST(engine_ragged_alltoall_returns_the_right_blocks) {
  for (testing::Style style : testing::kStyles) {
    for (int ranks : testing::kTeamSizes) {
      Team team(style, ranks);
      team.SetOption("chunk_bytes", "1024");
      OpSpec spec;
      spec.collective = Collective::kRaggedAlltoall;
      spec.shapes = "int32[?,3]";
      Team::Program program = team.Compile(std::vector<OpSpec>{spec});
      for (int launch = 1; launch <= 6; ++launch) {
        // Sizes change each time, and are sometimes large.
        std::mt19937 random(static_cast<uint32_t>(launch * 100 + ranks));
        std::vector<std::vector<int64_t>> sizes(ranks, std::vector<int64_t>(ranks));
        for (auto& of_rank : sizes) {
          for (int64_t& size : of_rank) size = random() % (launch % 3 == 0 ? 1500 : 6);
        }
        team.OnRanks([&](int rank) {
          std::vector<int32_t> operand;
          std::vector<int64_t> offsets, send_sizes = sizes[rank], places, taken_sizes;
          for (int peer = 0; peer < ranks; ++peer) {
            offsets.push_back(static_cast<int64_t>(operand.size()) / 3);
            for (int64_t i = 0; i < send_sizes[peer]; ++i) {
              const auto row = Row(rank, peer, i);
              operand.insert(operand.end(), row.begin(), row.end());
            }
          }
          // Blocks arrive in reverse order of ranks, with a row between them that must not change.
          int64_t rows = 1;
          places.resize(ranks);
          for (int peer = ranks - 1; peer >= 0; --peer) {
            places[peer] = rows;
            rows += sizes[peer][rank] + 1;
          }
          for (int peer = 0; peer < ranks; ++peer) taken_sizes.push_back(sizes[peer][rank]);
          std::vector<int32_t> expected(static_cast<size_t>(rows * 3), -7);
          for (int peer = 0; peer < ranks; ++peer) {
            for (int64_t i = 0; i < taken_sizes[peer]; ++i) {
              std::ranges::copy(Row(peer, rank, i), expected.begin() + (places[peer] + i) * 3);
            }
          }
          auto matrix = [](const std::vector<int32_t>& values) {
            Array array = Int32s(values);
            array.rows = static_cast<int64_t>(values.size()) / 3;
            return array;
          };
          auto table = [&](const std::vector<int64_t>& values) {
            if (launch % 2 == 0) return testing::ArrayOf(DType::kInt64, values);
            return Int32s({values.begin(), values.end()});
          };
          Array in = matrix(operand), before = matrix(std::vector<int32_t>(expected.size(), -7));
          Array tables[] = {table(offsets), table(send_sizes), table(places), table(taken_sizes)};
          Array out = matrix(std::vector<int32_t>(expected.size(), 99));
          CHECK_OK(team.Run(rank, program.At(rank, 0),
                            CallOf({&in, &before, &tables[0], &tables[1], &tables[2], &tables[3]},
                                   {&out}, launch)));
          CHECK(ValuesOf<int32_t>(out) == expected);
        });
      }
    }
  }
}

}  // namespace
}  // namespace jaxccomp
