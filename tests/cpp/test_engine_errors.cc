// Errors reach every rank, name the rank and the cause, and no rank hangs.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
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
using testing::CallOf;
using testing::Contains;
using testing::Int32s;
using testing::Pending;
using testing::SpecOf;
using testing::Style;
using testing::Team;
using testing::ValuesOf;

OpSpec Allreduce(int64_t count) { return SpecOf(Collective::kAllreduce, count); }

// The tensors of an operation with int32[count] operands.
struct Buffers {
  Buffers(const OpSpec& spec, int ranks) {
    const auto count = static_cast<int64_t>(std::stoll(spec.shapes.substr(6)));
    const CollectiveInfo& info = Info(spec.collective);
    in = Array(DType::kInt32, info.input == Blocks::kPerRank ? ranks : 1, count);
    out = Array(DType::kInt32, info.output == Blocks::kPerRank ? ranks : 1, count);
  }
  Array in, out;
};

Pending Enter(Team& team, Team::Program& program, int rank, size_t site, int64_t run_id,
              Buffers* buffers) {
  return team.Start(rank, program.At(rank, site), CallOf({&buffers->in}, {&buffers->out}, run_id));
}
Status Run(Team& team, Team::Program& program, int rank, size_t site, int64_t run_id) {
  Buffers buffers(program.At(rank, site).spec, team.ranks);
  return Enter(team, program, rank, site, run_id, &buffers).Get();
}

// Style in which ranks can run different programs: the devices of one process always run the same one.
constexpr Style kApart[] = {Style::kProcesses};

// Rank `odd` runs another program than the others; each rank runs its own until a call fails. Returns the status of
// each rank.
std::vector<Status> RunApart(Team& team, int odd, const std::vector<OpSpec>& usual,
                             const std::vector<OpSpec>& other) {
  Team::Program program =
      team.Compile([&](int rank) { return rank == odd ? other : usual; });
  std::vector<Status> told(static_cast<size_t>(team.ranks));
  team.OnRanks([&](int rank) {
    const size_t sites = (rank == odd ? other : usual).size();
    for (int launch = 1; launch <= 3 && told[rank].ok(); ++launch) {
      for (size_t site = 0; site < sites && told[rank].ok(); ++site) {
        told[rank] = Run(team, program, rank, site, launch);
      }
    }
    // All later calls fail.
    const Status later = Run(team, program, rank, 0, 4);
    CHECK(!later.ok());
    Contains(later, "after an earlier error");
  });
  for (const Status& status : told) {
    CHECK(status.code() == Code::kFailedPrecondition || status.code() == Code::kAborted);
  }
  return told;
}

TEST(engine_reports_different_collectives) {
  for (Style style : kApart) {
    for (int ranks : {2, 3, 5}) {
      for (int64_t count : {100, 30000}) {
        Team team(style, ranks);
        const int odd = ranks - 1;
        for (const Status& status :
             RunApart(team, odd, {Allreduce(count)}, {SpecOf(Collective::kAllgather, count)})) {
          Contains(status, "allreduce");
          Contains(status, "allgather");
          Contains(status, team.NameOf(odd));
          Contains(status, "step.py:" + std::to_string(count));
        }
      }
    }
  }
}

TEST(engine_reports_different_shapes) {
  for (Style style : kApart) {
    Team team(style, 3);
    for (const Status& status : RunApart(team, 1, {Allreduce(100)}, {Allreduce(101)})) {
      CHECK(status.message().find("int32[100]") != std::string::npos ||
            status.message().find("400 bytes") != std::string::npos);
      CHECK(status.message().find("int32[101]") != std::string::npos ||
            status.message().find("404 bytes") != std::string::npos);
      Contains(status, team.NameOf(1));
      Contains(status, "step.py:100");
      Contains(status, "step.py:101");
    }
  }
}

TEST(engine_reports_different_roots) {
  for (Style style : kApart) {
    for (int ranks : {2, 4}) {
      Team team(style, ranks);
      for (const Status& status :
           RunApart(team, 1, {SpecOf(Collective::kBcast, 100, 0), Allreduce(5)},
                    {SpecOf(Collective::kBcast, 100, 1), Allreduce(5)})) {
        Contains(status, team.NameOf(1));
        Contains(status, "root=");
      }
    }
  }
}

TEST(engine_reports_different_codecs) {
  for (Style style : kApart) {
    Team team(style, 2);
    OpSpec encoded = Allreduce(100);
    encoded.codec = "bf16";
    for (const Status& status : RunApart(team, 0, {Allreduce(100)}, {encoded})) {
      Contains(status, "codec=bf16");
    }
  }
}

TEST(engine_reports_programs_of_different_length) {
  for (Style style : kApart) {
    for (int ranks : {2, 4}) {
      for (int odd : {0, ranks - 1}) {
        Team team(style, ranks);
        // One rank omits the second operation.
        for (const Status& status :
             RunApart(team, odd, {Allreduce(100), SpecOf(Collective::kAllgather, 7)},
                      {Allreduce(100)})) {
          Contains(status, team.NameOf(odd));
          Contains(status, "collective mismatch");
        }
      }
    }
  }
}

TEST(engine_compares_programs_before_they_run) {
  for (Style style : kApart) {
    for (int ranks : {2, 3, 4, 5, 8}) {
      for (int odd : {0, ranks / 2}) {
        Team team(style, ranks);
        // The root of a bcast waits for no rank, and no rank needs the last operation.
        const std::vector<OpSpec> usual = {SpecOf(Collective::kBcast, 7, odd), Allreduce(5)};
        std::vector<OpSpec> other = usual;
        other.push_back(Allreduce(9));
        Team::Program program =
            team.Compile([&](int rank) { return rank == odd ? other : usual; });
        team.OnRanks([&](int rank) {
          Buffers buffers(usual[0], ranks);
          const Array before = buffers.out;
          const Status status = Enter(team, program, rank, 0, 1, &buffers).Get();
          CHECK(!status.ok());
          CHECK(buffers.out == before);
          Contains(status, "found before it ran");
          Contains(status, team.NameOf(odd));
          Contains(status, "alone has\n    allreduce(sum, int32[9])");
          Contains(status, "alone has\n    none");
          CHECK(status.message().find("int32[5]") == std::string::npos);
        });
      }
    }
  }
}

TEST(engine_compares_programs_longer_than_the_list_it_sends) {
  // These programs are longer than the list that is sent.
  for (Style style : kApart) {
    for (bool differ : {false, true}) {
      Team team(style, 3);
      Team::Program program = team.Compile([&](int rank) {
        std::vector<OpSpec> specs;
        for (int i = 0; i < 300; ++i) specs.push_back(Allreduce(1 + i % 50));
        if (differ && rank == 1) specs.back() = Allreduce(77);
        return specs;
      });
      team.OnRanks([&](int rank) {
        const Status status = Run(team, program, rank, 0, 1);
        CHECK_EQ(status.ok(), !differ);
        if (differ) {
          Contains(status, team.NameOf(1));
          Contains(status, "more");
        }
      });
    }
  }
}

TEST(engine_reports_a_known_program_against_a_new_one) {
  for (Style style : kApart) {
    Team team(style, 4);
    Team::Program known = team.Compile(std::vector<OpSpec>{Allreduce(5)});
    Team::Program fresh = team.Compile(std::vector<OpSpec>{SpecOf(Collective::kAllgather, 6)});
    team.OnRanks([&](int rank) { CHECK_OK(Run(team, known, rank, 0, 1)); });
    team.OnRanks([&](int rank) {
      const Status status = Run(team, rank == 2 ? fresh : known, rank, 0, 2);
      Contains(status, "collective mismatch in launch 2");
      Contains(status, "allreduce(sum, int32[5])");
      Contains(status, "allgather(int32[6])");
    });
  }
}

TEST(engine_reports_a_message_for_a_completed_operation) {
  // Both ranks act as root, so both finish before they receive each other's message.
  for (Style style : kApart) {
    Team team(style, 2);
    Team::Program program = team.Compile([&](int rank) {
      std::vector<OpSpec> specs = {SpecOf(Collective::kBcast, 4, rank), Allreduce(5)};
      for (OpSpec& spec : specs) spec.ordered = true;
      return specs;
    });
    std::vector<Status> told(2);
    team.OnRanks([&](int rank) {
      for (int launch = 1; launch <= 20 && told[rank].ok(); ++launch) {
        for (size_t site : {0, 1}) {
          if (told[rank].ok()) told[rank] = Run(team, program, rank, site, launch);
        }
      }
      Contains(told[rank], "collective mismatch");
      Contains(told[rank], "bcast(int32[4], root=");
    });
  }
}

TEST(engine_reports_different_operations_in_program_order) {
  for (Style style : kApart) {
    Team team(style, 2);
    OpSpec first = Allreduce(100), second = SpecOf(Collective::kAllgather, 100);
    first.ordered = second.ordered = true;
    for (const Status& status : RunApart(team, 1, {first, second}, {second, first})) {
      Contains(status, "allreduce");
      Contains(status, "allgather");
      Contains(status, team.NameOf(0));
      Contains(status, team.NameOf(1));
    }
  }
}

// The missing rank never comes, or only to the first launch.
void OneNeverComes(Style style, Collective collective, int64_t count, int missing, bool at_first) {
  const int ranks = 4;
  const bool bcast = collective == Collective::kBcast;
  Team team(style, ranks);
  team.SetOption("timeout_seconds", testing::ScaledSeconds(1.5));
  Team::Program program = team.Compile(std::vector<OpSpec>{
      SpecOf(collective, count, bcast ? 0 : -1), Allreduce(3), Allreduce(3)});
  if (!at_first) {
    team.OnRanks([&](int rank) {
      for (size_t site = 0; site < 3; ++site) CHECK_OK(Run(team, program, rank, site, 1));
    });
  }
  team.OnRanks([&](int rank) {
    if (rank == missing) return;
    // Several operations time out at once; a bcast has already completed on some ranks.
    std::vector<Buffers> buffers;
    std::vector<Pending> pending;
    for (size_t i = 0; i < 3; ++i) buffers.emplace_back(program.At(rank, i).spec, ranks);
    for (size_t i = 0; i < 3; ++i) {
      pending.push_back(Enter(team, program, rank, i, 2, &buffers[i]));
    }
    for (size_t i = 0; i < 3; ++i) {
      const Status status = pending[i].Get();
      if (i == 0 && bcast && status.ok()) continue;
      CHECK(status.code() == Code::kDeadlineExceeded || status.code() == Code::kAborted);
      // The error names the missing rank even if this rank waits for another waiting rank.
      Contains(status, "waits for " + team.NameOf(missing));
      Contains(status, "They did not come");
      Contains(status, "timeout_seconds");
    }
    CHECK(!Run(team, program, rank, 1, 3).ok());
  });
  // The missing rank comes too late.
  CHECK(!Run(team, program, missing, 0, 2).ok() || bcast);
  CHECK(!Run(team, program, missing, 1, 2).ok());
}

TEST(engine_names_a_missing_rank_at_the_deadline) {
  struct Absence {
    int missing;
    bool at_first;
  };
  const std::vector<Absence> absences = {{0, false}, {2, true}, {0, true}, {2, false}};
  const bool all = std::getenv("JAXCCOMP_TEST_ALL") != nullptr;
  std::vector<std::thread> threads;  // run concurrently: each mostly waits
  for (Style style : testing::kStyles) {
    for (Collective c : {Collective::kAllreduce, Collective::kBcast, Collective::kAlltoall}) {
      for (int64_t count : {10, 30000}) {
        // In turn, so that each absence occurs with each style and size.
        const size_t turn = threads.size() % absences.size();
        for (size_t i = 0; i < absences.size(); ++i) {
          if (!all && i != turn) continue;
          threads.emplace_back(OneNeverComes, style, c, count, absences[i].missing, absences[i].at_first);
        }
      }
    }
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(engine_waits_for_a_slow_rank) {
  for (Style style : testing::kStyles) {
    Team team(style, 3);
    team.SetOption("timeout_seconds", testing::ScaledSeconds(5));
    Team::Program program = team.Compile(std::vector<OpSpec>{Allreduce(3), Allreduce(30000)});
    team.OnRanks([&](int rank) {
      // Long enough to receive a probe.
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(700));
      for (size_t site : {0, 1}) CHECK_OK(Run(team, program, rank, site, 1));
    });
  }
}

TEST(engine_reports_a_lost_process_on_all_ranks) {
  Team team(Style::kProcesses, 4);
  Team::Program program = team.Compile(std::vector<OpSpec>{Allreduce(30000)});
  std::thread death([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    team.hub().MarkFailed(3);
  });
  team.OnRanks([&](int rank) {
    if (rank == 3) return;
    const Status status = Run(team, program, rank, 0, 1);
    CHECK(status.code() == Code::kUnavailable || status.code() == Code::kAborted);
    Contains(status, "process 3 is lost");
  });
  death.join();
}

TEST(engine_refuses_an_unknown_communicator) {
  Team team(Style::kProcesses, 2);
  OpSpec spec = Allreduce(3);
  spec.communicator = "nobody";
  Team::Program program = team.Compile(std::vector<OpSpec>{spec, Allreduce(3)});
  team.OnRanks([&](int rank) {
    const Status status = Run(team, program, rank, 0, 1);
    CHECK_EQ(status.code(), Code::kFailedPrecondition);
    Contains(status, "'nobody'");
    CHECK_OK(Run(team, program, rank, 1, 1));  // the others still work
  });
  CHECK_EQ(team.EngineOf(0).membership().AddCommunicator("far", {0, 7}).code(), Code::kInvalidArgument);
  CHECK_EQ(team.EngineOf(0).membership().AddCommunicator("world", {1, 0}).code(), Code::kInvalidArgument);
  CHECK_OK(team.EngineOf(0).membership().AddCommunicator("world", {0, 1}));
}

TEST(engine_refuses_calls_of_non_members) {
  Team team(Style::kProcesses, 2);
  for (int rank : {0, 1}) CHECK_OK(team.EngineOf(rank).membership().AddCommunicator("left", {0}));
  OpSpec spec = Allreduce(3);
  spec.communicator = "left";
  Team::Program program = team.Compile(std::vector<OpSpec>{spec});
  CHECK_OK(Run(team, program, 0, 0, 1));
  CHECK_EQ(Run(team, program, 1, 0, 1).code(), Code::kInvalidArgument);
}

TEST(engine_refuses_groups_with_unknown_devices) {
  Team team(Style::kDevices, 2);
  OpSpec stranger = Allreduce(3), uneven = Allreduce(3), elsewhere = Allreduce(3);
  stranger.groups = {team.DeviceOf(0), team.DeviceOf(1), 555};
  stranger.group_size = 3;
  uneven.groups = {team.DeviceOf(0), team.DeviceOf(1), 555};
  uneven.group_size = 2;
  elsewhere.groups = {555};
  elsewhere.group_size = 1;
  Team::Program program =
      team.Compile(std::vector<OpSpec>{stranger, uneven, elsewhere, Allreduce(3)});
  team.OnRanks([&](int rank) {
    const Status status = Run(team, program, rank, 0, 1);
    CHECK_EQ(status.code(), Code::kFailedPrecondition);
    Contains(status, "device 555");
    CHECK_EQ(Run(team, program, rank, 1, 1).code(), Code::kInvalidArgument);
    CHECK(!Run(team, program, rank, 2, 1).ok());
    CHECK_OK(Run(team, program, rank, 3, 1));
  });
}

// Calls with invalid arguments; the text must name the error.
TEST(engine_refuses_invalid_arguments) {
  auto with = [](Collective collective, auto change) {
    OpSpec spec = SpecOf(collective, 4, Info(collective).rooted ? 0 : -1);
    change(spec);
    return spec;
  };
  const std::vector<std::pair<OpSpec, std::string>> wrong = {
      {with(Collective::kAllgatherv, [](OpSpec& s) { s.counts = {1, 1, 1}; }), "2 are needed"},
      {with(Collective::kAlltoallv, [](OpSpec& s) { s.counts = {1, 1}; }), "4 are needed"},
      {with(Collective::kAllgatherv, [](OpSpec& s) { s.counts = {1, -1}; }), "negative"},
      {with(Collective::kAllgatherv, [](OpSpec& s) { s.counts = {5, 5}; }), "counts ask for"},
      {with(Collective::kBcast, [](OpSpec& s) { s.root = 2; }), "root must be in 0..1"},
      {with(Collective::kReduce, [](OpSpec& s) { s.root = -1; }), "root must be in 0..1"},
      {with(Collective::kAllreduce, [](OpSpec& s) { s.algorithm = "magic"; }), "two_shot"},
      {with(Collective::kAllreduce, [](OpSpec& s) { s.mean = true; }), "int32"},
      {with(Collective::kPermute, [](OpSpec& s) { s.pairs = {0, 2}; }), "rank 2 does not exist"},
      {with(Collective::kRaggedAlltoall, [](OpSpec&) {}), "six operands"},
  };
  for (Style style : testing::kStyles) {
    for (const auto& [spec, text] : wrong) {
      Team team(style, 2);
      Team::Program program = team.Compile(std::vector<OpSpec>{spec});
      team.OnRanks([&](int rank) {
        const Status status = Run(team, program, rank, 0, 1);
        CHECK(status.code() == Code::kInvalidArgument || status.code() == Code::kAborted);
        Contains(status, text);
      });
    }
  }
}

TEST(engine_refuses_tensors_of_wrong_shape) {
  for (Style style : testing::kStyles) {
    Team team(style, 2);
    Team::Program program = team.Compile(
        std::vector<OpSpec>{SpecOf(Collective::kAllgather, 4), Allreduce(4)});
    team.OnRanks([&](int rank) {
      Array in(DType::kInt32, 1, 4), out(DType::kInt32, 3, 4);
      const Status status = team.Run(rank, program.At(rank, 0), CallOf({&in}, {&out}, 1));
      CHECK(status.code() == Code::kInvalidArgument || status.code() == Code::kAborted);
      Contains(status, "the number of ranks, 2");
    });
    Team other(style, 2);
    Team::Program second = other.Compile(std::vector<OpSpec>{Allreduce(4)});
    other.OnRanks([&](int rank) {
      Array in(DType::kInt32, 1, 4), out(DType::kInt32, 1, 4);
      const Status status = other.Run(rank, second.At(rank, 0), CallOf({&in, &in}, {&out}, 1));
      CHECK(status.code() == Code::kInvalidArgument || status.code() == Code::kAborted);
      Contains(status, "2 operands and 1 results");
    });
  }
}

TEST(engine_reports_an_invalid_call_of_one_rank_on_all_ranks) {
  for (Style style : testing::kStyles) {
    Team team(style, 3);
    Team::Program program = team.Compile(std::vector<OpSpec>{Allreduce(4)});
    team.OnRanks([&](int rank) {
      Array in(DType::kInt32, 1, 4), out(DType::kInt32, 1, rank == 2 ? 5 : 4);
      const Status status = team.Run(rank, program.At(rank, 0), CallOf({&in}, {&out}, 1));
      CHECK(!status.ok());
      Contains(status, "operand and result differ in size");
    });
  }
}

TEST(engine_refuses_tensors_that_differ_from_their_shape_text) {
  // The shapes' texts agree, the tensors do not.
  for (Style style : testing::kStyles) {
    Team team(style, 2);
    Team::Program program = team.Compile([&](int) { return std::vector<OpSpec>{Allreduce(4)}; });
    team.OnRanks([&](int rank) {
      Array in(DType::kInt32, 1, 4 + rank), out(DType::kInt32, 1, 4 + rank);
      const Status status = team.Run(rank, program.At(rank, 0), CallOf({&in}, {&out}, 1));
      CHECK(!status.ok());
      Contains(status, "the shapes or sizes differ between the ranks");
    });
  }
}

TEST(engine_refuses_unknown_options_and_invalid_values) {
  Engine engine(0, 1);
  Status status = engine.SetOption("chunk_byte", "1");
  CHECK_EQ(status.code(), Code::kInvalidArgument);
  Contains(status, "chunk_bytes");
  for (const char* value : {"", "many", "-1", "1x", "nan"}) {
    CHECK_EQ(engine.SetOption("timeout_seconds", value).code(), Code::kInvalidArgument);
  }
  CHECK_OK(engine.SetOption("timeout_seconds", "1e3"));
}

TEST(engine_shutdown_ends_waiting_operations) {
  for (Style style : testing::kStyles) {
    for (Collective collective : {Collective::kAllreduce, Collective::kBcast}) {
      for (int64_t count : {10, 30000}) {
        // Rank 2 never comes.
        Team team(style, 3);
        Team::Program program = team.Compile(std::vector<OpSpec>{
            SpecOf(collective, count, collective == Collective::kBcast ? 0 : -1), Allreduce(9)});
        std::vector<Buffers> buffers;
        std::vector<Pending> pending;
        for (int rank : {0, 1}) {
          for (size_t site : {0, 1}) buffers.emplace_back(program.At(rank, site).spec, 3);
        }
        for (int i = 0; i < 4; ++i) {
          const auto site = static_cast<size_t>(i % 2);
          pending.push_back(Enter(team, program, i / 2, site, 1, &buffers[i]));
        }
        for (int rank : {1, 0}) team.EngineOf(rank).Shutdown();
        for (int i = 0; i < 4; ++i) {
          CHECK(pending[i].IsOver());  // no callback runs afterwards
          const Status status = pending[i].Get();
          if (i % 2 == 0 && collective == Collective::kBcast && status.ok()) continue;
          CHECK_EQ(status.code(), Code::kAborted);
          // The error names the operation that waited.
          const auto site = static_cast<size_t>(i % 2);
          Contains(status, std::string(Info(program.At(i / 2, site).spec.collective).name) + "(");
        }
        CHECK_EQ(Run(team, program, 0, 1, 2).code(), Code::kAborted);
        team.EngineOf(0).Shutdown();  // a second call has no effect
      }
    }
  }
}

TEST(engine_shutdown_ends_operations_with_transfers_in_flight) {
  for (Style style : testing::kStyles) {
    for (int round = 0; round < 6; ++round) {
      const int ranks = 3;
      Team team(style, ranks);
      team.SetOption("chunk_bytes", "4096");
      Team::Program program = team.Compile(
          std::vector<OpSpec>{Allreduce(40000), SpecOf(Collective::kAlltoall, 20000)});
      std::thread end([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2 + 3 * round));
        for (int rank = 0; rank < ranks; ++rank) team.EngineOf(rank).Shutdown();
      });
      team.OnRanks([&](int rank) {
        Status status;
        for (int launch = 1; status.ok(); ++launch) {
          status = Run(team, program, rank, static_cast<size_t>(launch % 2), launch / 2);
        }
        CHECK(status.code() == Code::kAborted || status.code() == Code::kUnavailable);
      });
      end.join();
    }
  }
}

TEST(engine_destructor_completes_pending_operations) {
  for (Style style : testing::kStyles) {
    std::vector<Buffers> buffers;
    Pending first, second;
    {
      Team team(style, 2);
      Team::Program program =
          team.Compile(std::vector<OpSpec>{SpecOf(Collective::kBcast, 30000, 0), Allreduce(5)});
      for (size_t site : {0, 1}) buffers.emplace_back(program.At(0, site).spec, 2);
      first = Enter(team, program, 0, 0, 1, &buffers[0]);
      second = Enter(team, program, 0, 1, 1, &buffers[1]);
    }
    for (const Pending& pending : {first, second}) {
      if (CHECK(pending.IsOver())) CHECK_EQ(pending.Get().code(), Code::kAborted);
    }
  }
}

TEST(engine_counts_calls_and_bytes) {
  Team team(Style::kProcesses, 2);
  Team::Program program = team.Compile(std::vector<OpSpec>{SpecOf(Collective::kBcast, 100, 0)});
  for (int launch = 1; launch <= 3; ++launch) {
    team.OnRanks([&](int rank) { CHECK_OK(Run(team, program, rank, 0, launch)); });
  }
  const CollectiveStats stats =
      team.EngineOf(0).measurements().GetStats()[static_cast<size_t>(Collective::kBcast)];
  CHECK_EQ(stats.calls, 3);
  CHECK_EQ(stats.value_bytes, 1200);
  CHECK_EQ(stats.sent_bytes, 1200);
  CHECK_EQ(stats.remote_bytes, 1200);
  CHECK(stats.seconds > 0);
  team.EngineOf(0).measurements().ResetStats();
  CHECK_EQ(team.EngineOf(0).measurements().GetStats()[0].calls, 0);
}

}  // namespace
}  // namespace jaxccomp
