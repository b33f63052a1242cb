// Operations match independently of the order in which each rank runs a program's call sites.
#include <algorithm>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "team.h"

namespace jaxccomp {
namespace {

using testing::Array;
using testing::CallOf;
using testing::Int32s;
using testing::Pending;
using testing::SpecOf;
using testing::Style;
using testing::Team;
using testing::ValuesOf;

OpSpec Allreduce(int64_t count) { return SpecOf(Collective::kAllreduce, count); }

int64_t CountOf(const OpSpec& spec) { return std::stoll(spec.shapes.substr(6)); }

// A run of a call site on a rank. Its values identify site, launch and iteration.
struct Visit {
  Array in, out;
  Pending pending;
};

int32_t ValueOf(int rank, int64_t launch, size_t site, int iteration) {
  return static_cast<int32_t>(rank + 1 + 20 * (launch + 50 * (site + 100 * int64_t{iteration})));
}

void Enter(Team& team, Team::Program& program, int rank, size_t site, int64_t run_id,
           int64_t launch, int iteration, Visit* visit) {
  CallSite& s = program.At(rank, site);
  const auto count = static_cast<size_t>(CountOf(s.spec));
  const bool gathers = s.spec.collective == Collective::kAllgather;
  visit->in = Int32s(std::vector<int32_t>(count, ValueOf(rank, launch, site, iteration)));
  visit->out = Array(DType::kInt32, gathers ? team.ranks : 1, static_cast<int64_t>(count));
  visit->pending = team.Start(rank, s, CallOf({&visit->in}, {&visit->out}, run_id));
}

void Leave(Team& team, Team::Program& program, int rank, size_t site, int64_t launch,
           int iteration, Visit* visit) {
  const OpSpec& spec = program.At(rank, site).spec;
  if (!CHECK_OK(visit->pending.Get())) return;
  const auto count = static_cast<size_t>(CountOf(spec));
  std::vector<int32_t> expected(count, 0);
  if (spec.collective == Collective::kAllreduce) {
    for (int r = 0; r < team.ranks; ++r) {
      for (int32_t& value : expected) value += ValueOf(r, launch, site, iteration);
    }
  } else if (spec.collective == Collective::kBcast) {
    expected.assign(count, ValueOf(static_cast<int>(spec.root), launch, site, iteration));
  } else {
    expected.clear();
    for (int r = 0; r < team.ranks; ++r) {
      expected.insert(expected.end(), count, ValueOf(r, launch, site, iteration));
    }
  }
  CHECK(ValuesOf<int32_t>(visit->out) == expected);
}

// 64 call sites; many of them are equal.
std::vector<OpSpec> ManySites(int ranks) {
  std::vector<OpSpec> specs;
  for (int i = 0; i < 64; ++i) {
    const int64_t count = i % 8 == 7 ? 6000 : 1 + i % 4;
    switch (i % 3) {
      case 0: specs.push_back(Allreduce(count)); break;
      case 1: specs.push_back(SpecOf(Collective::kBcast, count, i / 2 % ranks)); break;
      default: specs.push_back(SpecOf(Collective::kAllgather, count));
    }
  }
  return specs;
}

// Runs one launch on a rank: every site once, from `threads` threads, in random order.
void RunInRandomOrder(Team& team, Team::Program& program, int rank, int64_t run_id, int64_t launch,
                      int threads, uint32_t seed) {
  std::vector<size_t> order(program.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  std::vector<Visit> visits(order.size());
  auto enter_some = [&](size_t first) {
    for (size_t i = first; i < order.size(); i += threads) {
      Enter(team, program, rank, order[i], run_id, launch, 0, &visits[order[i]]);
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(enter_some, t);
  enter_some(0);
  for (std::thread& other : others) other.join();
  for (size_t i = 0; i < visits.size(); ++i) {
    Leave(team, program, rank, i, launch, 0, &visits[i]);
  }
}

TEST(engine_matches_call_sites_in_any_order) {
  for (Style style : testing::kStyles) {
    for (int ranks : {1, 2, 3, 5, 8}) {
      Team team(style, ranks);
      team.SetOption("chunk_bytes", "4096");
      Team::Program program = team.Compile(ManySites(ranks));
      const int launches = 8;
      team.OnRanks([&](int rank) {
        for (int64_t launch = 1; launch <= launches; ++launch) {
          // Ranks have unrelated run ids.
          const int64_t run_id = launch * 17 + rank * (style == Style::kProcesses ? 1000 : 0);
          RunInRandomOrder(team, program, rank, run_id, launch, 3,
                           static_cast<uint32_t>(launch * 32 + rank));
        }
      });
    }
  }
}

TEST(engine_matches_a_program_recompiled_on_one_rank) {
  for (Style style : testing::kStyles) {
    const int ranks = 4;
    Team team(style, ranks);
    const std::vector<OpSpec> specs = ManySites(ranks);
    Team::Program program = team.Compile([&](int) { return specs; });
    for (int64_t launch = 1; launch <= 8; ++launch) {
      team.OnRanks([&](int rank) {
        RunInRandomOrder(team, program, rank, launch, launch, 2,
                         static_cast<uint32_t>(launch * 32 + rank));
      });
      team.Recompile(&program, static_cast<int>(launch) % ranks, specs);
    }
  }
}

TEST(engine_matches_call_sites_compiled_in_any_order) {
  // Call sites are equal except for their position in the source; each rank compiles them in a different order.
  for (Style style : testing::kStyles) {
    const int ranks = 3;
    Team team(style, ranks);
    constexpr size_t kSites = 12;
    auto order_of = [&](int rank) {
      std::vector<int> order(kSites);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<uint32_t>(rank)));
      return order;
    };
    Team::Program program = team.Compile([&](int rank) {
      std::vector<OpSpec> specs;
      for (int place : order_of(rank)) {
        specs.push_back(Allreduce(3));
        specs.back().site = place;
      }
      return specs;
    });
    team.OnRanks([&](int rank) {
      const std::vector<int> order = order_of(rank);
      for (int launch = 1; launch <= 10; ++launch) {
        std::vector<Array> in, out(kSites, Array(DType::kInt32, 1, 3));
        std::vector<Pending> pending;
        for (int place : order) in.push_back(Int32s({place, launch, rank}));
        for (size_t i = 0; i < kSites; ++i) {
          pending.push_back(
              team.Start(rank, program.At(rank, i), CallOf({&in[i]}, {&out[i]}, launch)));
        }
        for (size_t i = 0; i < kSites; ++i) {
          CHECK_OK(pending[i].Get());
          CHECK(ValuesOf<int32_t>(out[i]) == std::vector<int32_t>({3 * order[i], 3 * launch, 3}));
        }
      }
    });
  }
}

TEST(engine_matches_alternating_programs) {
  for (Style style : testing::kStyles) {
    const int ranks = 3;
    Team team(style, ranks);
    Team::Program first = team.Compile(std::vector<OpSpec>{Allreduce(4), Allreduce(4)});
    Team::Program second =
        team.Compile(std::vector<OpSpec>{Allreduce(4), SpecOf(Collective::kAllgather, 4)});
    team.OnRanks([&](int rank) {
      // More launches than an endpoint remembers.
      for (int64_t launch = 1; launch <= 150; ++launch) {
        // XLA may give launches of different programs the same run id.
        RunInRandomOrder(team, launch % 3 == 0 ? second : first, rank, launch / 3, launch % 40, 1,
                         static_cast<uint32_t>(launch * 32 + rank));
      }
    });
  }
}

TEST(engine_matches_loops_over_equal_call_sites) {
  for (Style style : testing::kStyles) {
    for (int ranks : {2, 5}) {
      Team team(style, ranks);
      // The first three are equal.
      Team::Program program = team.Compile(std::vector<OpSpec>{
          Allreduce(5), Allreduce(5), Allreduce(5), SpecOf(Collective::kBcast, 3000, 1)});
      for (int64_t launch = 1; launch <= 3; ++launch) {
        team.OnRanks([&](int rank) {
          // Each site loops on its own thread.
          std::vector<std::thread> threads;
          for (size_t site = 0; site < program.size(); ++site) {
            threads.emplace_back([&, site] {
              for (int iteration = 0; iteration < 30; ++iteration) {
                Visit visit;
                Enter(team, program, rank, site, launch, launch, iteration, &visit);
                Leave(team, program, rank, site, launch, iteration, &visit);
              }
            });
          }
          for (std::thread& thread : threads) thread.join();
        });
      }
    }
  }
}

TEST(engine_matches_messages_of_a_root_that_is_launches_ahead) {
  // A root far ahead: its messages wait for the other ranks.
  for (Style style : testing::kStyles) {
    const int ranks = 3;
    Team team(style, ranks);
    Team::Program program = team.Compile(std::vector<OpSpec>{
        SpecOf(Collective::kBcast, 5, 0), SpecOf(Collective::kBcast, 5, 0)});
    const int launches = 30;
    // No rank runs ahead in a program's first run, because its collectives are compared there.
    team.OnRanks([&](int rank) { RunInRandomOrder(team, program, rank, 1, 1, 1, 1); });
    for (int rank = 0; rank < ranks; ++rank) {
      for (int64_t launch = 2; launch <= launches; ++launch) {
        RunInRandomOrder(team, program, rank, launch, launch, 1,
                         static_cast<uint32_t>(launch + rank));
      }
    }
  }
}

TEST(engine_matches_ordered_operations_of_different_programs) {
  // Programs differ by rank: operations match by the order in which they run.
  for (Style style : testing::kStyles) {
    const int ranks = 3;
    Team team(style, ranks);
    auto ordered = [](OpSpec spec) {
      spec.ordered = true;
      return spec;
    };
    Team::Program program = team.Compile([&](int rank) {
      std::vector<OpSpec> specs = {ordered(Allreduce(7)),
                                   ordered(SpecOf(Collective::kBcast, 9, 2))};
      if (rank == 1) specs.insert(specs.begin() + 1, 3, ordered(Allreduce(7)));
      return specs;
    });
    team.OnRanks([&](int rank) {
      const size_t bcast = rank == 1 ? 4 : 1;
      for (int launch = 1; launch <= 20; ++launch) {
        // Rank 1 unrolls the loop of the others.
        for (size_t i = 0; i < 4; ++i) {
          Array in = Int32s(std::vector<int32_t>(7, launch * 10 + rank)), out = in;
          CHECK_OK(team.Run(rank, program.At(rank, rank == 1 ? i : 0),
                            CallOf({&in}, {&out}, launch)));
          CHECK_EQ(ValuesOf<int32_t>(out)[6], 30 * launch + 3);
        }
        Array in = Int32s(std::vector<int32_t>(9, launch + rank)), out = in;
        CHECK_OK(team.Run(rank, program.At(rank, bcast), CallOf({&in}, {&out}, launch)));
        CHECK_EQ(ValuesOf<int32_t>(out)[8], launch + 2);
      }
    });
  }
}

TEST(engine_matches_groups_of_a_mesh) {
  // Rows, columns and all ranks of a 2 x 3 mesh in one program.
  for (Style style : testing::kStyles) {
    Team team(style, 6);
    const std::vector<std::vector<int>> rows = {{0, 1, 2}, {3, 4, 5}};
    const std::vector<std::vector<int>> columns = {{0, 3}, {1, 4}, {2, 5}};
    auto in_group = [&](const std::vector<std::vector<int>>& groups, int rank) {
      for (const auto& group : groups) {
        if (std::find(group.begin(), group.end(), rank) != group.end()) return group;
      }
      return std::vector<int>();
    };
    if (style == Style::kProcesses) {
      for (int rank = 0; rank < 6; ++rank) {
        CHECK_OK(team.EngineOf(rank).membership().AddCommunicator("row", in_group(rows, rank)));
        CHECK_OK(team.EngineOf(rank).membership().AddCommunicator("column", in_group(columns, rank)));
      }
    }
    auto over = [&](const std::vector<std::vector<int>>& groups, const char* name) {
      OpSpec spec = Allreduce(3);
      if (style == Style::kProcesses) {
        spec.communicator = name;
        return spec;
      }
      for (const auto& group : groups) {
        for (int rank : group) spec.groups.push_back(team.DeviceOf(rank));
      }
      spec.group_size = static_cast<int64_t>(groups[0].size());
      return spec;
    };
    const std::vector<OpSpec> specs = {over(rows, "row"), over(columns, "column"), Allreduce(3)};
    Team::Program program = team.Compile(specs);
    team.OnRanks([&](int rank) {
      for (int launch = 1; launch <= 30; ++launch) {
        for (size_t i = 0; i < 3; ++i) {
          const size_t site = (i + static_cast<size_t>(launch)) % 3;
          Array in = Int32s({rank, launch, 1}), out = in;
          CHECK_OK(team.Run(rank, program.At(rank, site), CallOf({&in}, {&out}, launch)));
          const std::vector<int> members = site == 0   ? in_group(rows, rank)
                                           : site == 1 ? in_group(columns, rank)
                                                       : std::vector<int>{0, 1, 2, 3, 4, 5};
          const int size = static_cast<int>(members.size());
          CHECK(ValuesOf<int32_t>(out) ==
                std::vector<int32_t>({std::accumulate(members.begin(), members.end(), 0),
                                      launch * size, size}));
        }
      }
    });
  }
}

TEST(engine_matches_groups_listed_in_another_order) {
  // Both call sites use the same pairs of devices, but the second lists its groups in reverse. Ranks run the two in
  // different orders.
  const int ranks = 4;
  Team team(Style::kDevices, ranks);
  auto over = [&](const std::vector<int>& order) {
    OpSpec spec = Allreduce(3);
    for (int rank : order) spec.groups.push_back(team.DeviceOf(rank));
    spec.group_size = 2;
    return spec;
  };
  Team::Program program = team.Compile([&](int) {
    return std::vector<OpSpec>{over({0, 1, 2, 3}), over({2, 3, 0, 1}), over({0, 1, 3, 2})};
  });
  team.OnRanks([&](int rank) {
    for (int launch = 1; launch <= 20; ++launch) {
      std::vector<Array> in, out;
      for (size_t i = 0; i < 3; ++i) in.push_back(Int32s({rank, launch, 1}));
      out = in;
      std::vector<Pending> pending;
      for (size_t i = 0; i < 3; ++i) {
        const size_t site = (i + static_cast<size_t>(rank + launch)) % 3;
        pending.push_back(
            team.Start(rank, program.At(rank, site), CallOf({&in[i]}, {&out[i]}, launch)));
      }
      for (size_t i = 0; i < 3; ++i) {
        CHECK_OK(pending[i].Get());
        const std::vector<int32_t> sum = {rank + (rank ^ 1), 2 * launch, 2};
        CHECK(ValuesOf<int32_t>(out[i]) == sum);
      }
    }
  });
}

}  // namespace
}  // namespace jaxccomp
