// Messages of programs that differ between ranks: matching, and detection of deadlocks.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "matching/point_to_point_matching.h"
#include "patience.h"
#include "team.h"
#include "transport/transport_router.h"

namespace jaxccomp {
namespace {

using testing::Array;
using testing::CallOf;
using testing::Int32s;
using testing::Pending;
using testing::Style;
using testing::Team;
using testing::ValuesOf;

constexpr int64_t kLarge = 20001;   // int32 values: sent by rendezvous

std::string Shape(int64_t count) { return "int32[" + std::to_string(count) + "]"; }

OpSpec One(Collective collective, int64_t peer, int64_t count, int64_t tag = 0) {
  OpSpec spec;
  spec.collective = collective;
  spec.pairs = {peer};
  spec.tag = tag;
  spec.ordered = true;
  spec.shapes = Shape(count);
  spec.where = std::string(collective == Collective::kSend ? "send" : "recv") + ".py:1";
  return spec;
}
OpSpec Send(int64_t to, int64_t count, int64_t tag = 0) {
  return One(Collective::kSend, to, count, tag);
}
OpSpec Recv(int64_t from, int64_t count, int64_t tag = 0) {
  return One(Collective::kRecv, from, count, tag);
}
OpSpec Both(int64_t to, int64_t sent, int64_t send_tag, int64_t from, int64_t received,
            int64_t recv_tag) {
  OpSpec spec = One(Collective::kSendrecv, to, sent, send_tag);
  spec.pairs = {to, from};
  spec.recv_tag = recv_tag;
  spec.recv_shapes = Shape(received);
  return spec;
}

Array Numbers(int64_t count, int32_t first) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return Int32s(values);
}

int64_t CountOf(const std::string& shape) { return std::stoll(shape.substr(6)); }

// A call of an operation, and its tensors.
struct Called {
  Array in, out, status;
  Pending pending;
};

void Begin(Team& team, Team::Program& program, int rank, size_t site, int32_t first, Called* called) {
  const OpSpec& spec = program.At(rank, site).spec;
  const bool both = spec.collective == Collective::kSendrecv;
  called->in = Numbers(CountOf(spec.shapes), first);
  called->out = Array(DType::kInt32, CountOf(both ? spec.recv_shapes : spec.shapes), 1);
  called->status = Array(DType::kInt32, 2, 1);
  std::vector<Array*> outputs = {&called->out};
  if (spec.status) outputs.push_back(&called->status);
  called->pending =
      team.Start(rank, program.At(rank, site), CallOf({&called->in}, outputs, 1));
}

Called Run(Team& team, Team::Program& program, int rank, size_t site, int32_t first) {
  Called called;
  Begin(team, program, rank, site, first, &called);
  CHECK_OK(called.pending.Get());
  return called;
}

TEST(point_to_point_chain_of_sendrecv_completes) {
  for (Style style : testing::kStyles) {
    for (int64_t count : {int64_t{3}, kLarge}) {
      const int ranks = 5;
      Team team(style, ranks);
      team.SetOption("chunk_bytes", "4096");
      Team::Program program = team.Compile([&](int rank) {
        std::vector<OpSpec> all;
        for (int other : {rank - 1, rank + 1}) {
          if (other >= 0 && other < ranks) all.push_back(Both(other, count, 0, other, count, 0));
        }
        return all;
      });
      for (int round = 0; round < 5; ++round) {
        team.OnRanks([&](int rank) {
          size_t site = 0;
          for (int other : {rank - 1, rank + 1}) {
            if (other < 0 || other >= ranks) continue;
            const Called called = Run(team, program, rank, site++, 100 * rank + round);
            CHECK(called.out == Numbers(count, 100 * other + round));
          }
        });
      }
    }
  }
}

TEST(point_to_point_sendrecv_matches_send_and_recv_of_other_sizes) {
  for (Style style : testing::kStyles) {
    Team team(style, 2);
    team.SetOption("chunk_bytes", "4096");
    for (const auto& [sent, received] : {std::pair<int64_t, int64_t>{5, kLarge}, {kLarge, 0}}) {
      Team::Program program = team.Compile([&](int rank) {
        if (rank == 0) return std::vector<OpSpec>{Both(1, sent, 7, 1, received, 9)};
        return std::vector<OpSpec>{Send(0, received, 9), Recv(0, sent, 7)};
      });
      team.OnRanks([&](int rank) {
        if (rank == 0) {
          CHECK(Run(team, program, 0, 0, 3).out == Numbers(received, 50));
        } else {
          Run(team, program, 1, 0, 50);
          CHECK(Run(team, program, 1, 1, 0).out == Numbers(sent, 3));
        }
      });
    }
  }
}

TEST(point_to_point_ring_in_sequence_completes_within_its_memory) {
  // Each rank sends only after the previous rank has sent all of its data, encoded in more chunks than a rank may hold.
  for (Style style : testing::kStyles) {
    const int ranks = 3;
    Team team(style, ranks);
    team.SetOption("chunk_bytes", "4096");
    Team::Program program = team.Compile([&](int rank) {
      const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
      std::vector<OpSpec> all = {Both(next, kLarge, 0, previous, kLarge, 0)};
      if (rank == 0) all = {Recv(previous, kLarge), Send(next, kLarge)};
      for (OpSpec& spec : all) spec.codec = "lossless";
      return all;
    });
    team.OnRanks([&](int rank) {
      const Array expected = Numbers(kLarge, (rank + ranks - 1) % ranks);
      CHECK(Run(team, program, rank, 0, rank).out == expected);
      if (rank == 0) Run(team, program, rank, 1, 0);
    });
  }
}

TEST(point_to_point_rank_sends_to_itself) {
  for (Style style : testing::kStyles) {
    for (int64_t count : {int64_t{0}, int64_t{4}, kLarge}) {
      for (const char* codec : {"raw", "lossless"}) {
        Team team(style, 2);
        team.SetOption("chunk_bytes", "4096");
        Team::Program program = team.Compile([&](int rank) {
          std::vector<OpSpec> all = {Send(rank, count), Recv(rank, count),
                                     Both(rank, count, 0, rank, count, 0)};
          for (OpSpec& spec : all) spec.codec = codec;
          return all;
        });
        team.OnRanks([&](int rank) {
          Run(team, program, rank, 0, 10);
          Run(team, program, rank, 0, 20);
          CHECK(Run(team, program, rank, 1, 0).out == Numbers(count, 10));
          CHECK(Run(team, program, rank, 2, 30).out == Numbers(count, 20));
          CHECK(Run(team, program, rank, 1, 0).out == Numbers(count, 30));
        });
      }
    }
  }
}

TEST(point_to_point_any_source_receives_in_order_of_each_sender) {
  for (Style style : testing::kStyles) {
    for (int64_t count : {int64_t{2}, kLarge}) {
      const int ranks = 4, messages = 12;
      Team team(style, ranks);
      team.SetOption("chunk_bytes", "4096");
      Team::Program program = team.Compile([&](int rank) {
        std::vector<OpSpec> all;
        for (int tag = 0; tag < messages; ++tag) all.push_back(Send(0, count, tag));
        if (rank == 0) all = {Recv(OpSpec::kAnySource, count, OpSpec::kAnyTag)};
        if (rank == 0) all[0].status = true;
        return all;
      });
      team.OnRanks([&](int rank) {
        if (rank > 0) {
          std::vector<Called> called(messages);
          for (int tag = 0; tag < messages; ++tag) {
            Begin(team, program, rank, static_cast<size_t>(tag), 1000 * rank + tag, &called[tag]);
          }
          for (Called& each : called) CHECK_OK(each.pending.Get());
          return;
        }
        std::vector<int32_t> next(ranks, 0);
        for (int i = 0; i < messages * (ranks - 1); ++i) {
          const Called called = Run(team, program, 0, 0, 0);
          const std::vector<int32_t> status = ValuesOf<int32_t>(called.status);
          if (!CHECK(status[0] > 0 && status[0] < ranks)) return;
          CHECK_EQ(status[1], next[status[0]]++);
          CHECK(called.out == Numbers(count, 1000 * status[0] + status[1]));
        }
      });
    }
  }
}

// A send may succeed if its receiver discards the payload, because the sender can see that before the error.
bool MayBeDone(const OpSpec& spec, const Status& status) {
  return status.ok() && spec.collective == Collective::kSend;
}

TEST(point_to_point_mismatch_names_both_calls) {
  for (Style style : testing::kStyles) {
    Team team(style, 2);
    Team::Program program = team.Compile([&](int rank) {
      return std::vector<OpSpec>{rank == 0 ? Send(1, kLarge) : Recv(0, 7)};
    });
    team.OnRanks([&](int rank) {
      Called called;
      Begin(team, program, rank, 0, 0, &called);
      const Status status = called.pending.Get();
      if (MayBeDone(program.At(rank, 0).spec, status)) return;
      const std::string text = status.message();
      for (const char* part : {"send(int32[20001]", "send.py:1", "recv(int32[7]", "recv.py:1"}) {
        CHECK(text.find(part) != std::string::npos);
      }
      CHECK(text.find("ordered()") == std::string::npos);
    });
  }
}

// ---- Deadlocks ---------------------------------------------------------------------------

// Checks the error of two ranks' first calls, which can never complete.
void CheckDeadlock(const OpSpec& first, const OpSpec& second) {
  Team team(Style::kProcesses, 2);
  for (int rank : {0, 1}) team.EngineOf(rank).SetCallsOneByOne([] { return true; });
  Team::Program program = team.Compile([&](int rank) {
    return std::vector<OpSpec>{rank == 0 ? first : second};
  });
  team.OnRanks([&](int rank) {
    Called called;
    const testing::Stopwatch watch;
    Begin(team, program, rank, 0, 0, &called);
    const Status status = called.pending.Get();
    CHECK(watch.Seconds() < 10);
    if (MayBeDone(program.At(rank, 0).spec, status)) return;
    const std::string text = status.message();
    for (const std::string& part : {std::string("deadlock"), first.where, second.where}) {
      CHECK(text.find(part) != std::string::npos);
    }
  });
}

TEST(point_to_point_deadlock_is_reported) {
  CheckDeadlock(Recv(1, 3), Recv(0, 3));
  CheckDeadlock(Send(1, kLarge), Send(0, kLarge));
  CheckDeadlock(Send(1, kLarge, 1), Recv(0, kLarge, 2));
  CheckDeadlock(Both(1, 3, 0, 1, 3, 5), Recv(0, 3, 8));
}

TEST(point_to_point_no_deadlock_is_reported_with_several_threads) {
  // Both ranks wait in a receive for longer than a probe takes. Then each rank sends the message that the other waits
  // for.
  Team team(Style::kProcesses, 2);
  for (int rank : {0, 1}) {
    team.EngineOf(rank).SetCallsOneByOne([rank] { return rank == 0; });
  }
  Team::Program program = team.Compile([&](int rank) {
    return std::vector<OpSpec>{Recv(1 - rank, 3), Send(1 - rank, 3)};
  });
  team.OnRanks([&](int rank) {
    Called received, sent;
    Begin(team, program, rank, 0, 0, &received);
    std::this_thread::sleep_for(std::chrono::milliseconds(1300));
    Begin(team, program, rank, 1, 40 + rank, &sent);
    CHECK_OK(sent.pending.Get());
    CHECK_OK(received.pending.Get());
    CHECK(received.out == Numbers(3, 41 - rank));
  });
}

TEST(point_to_point_waits_for_a_late_rank) {
  Team team(Style::kProcesses, 3);
  for (int rank : {0, 1, 2}) team.EngineOf(rank).SetCallsOneByOne([] { return true; });
  // Rank 0 waits for 1, 1 for 2, and 2 comes late.
  Team::Program program = team.Compile([&](int rank) {
    if (rank == 0) return std::vector<OpSpec>{Recv(1, 3), Send(1, 3)};
    if (rank == 1) return std::vector<OpSpec>{Recv(2, 3), Send(0, 3), Recv(0, 3)};
    return std::vector<OpSpec>{Send(1, 3)};
  });
  team.OnRanks([&](int rank) {
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1600));
    for (size_t site = 0; site < (rank == 0 ? 2u : rank == 1 ? 3u : 1u); ++site) {
      Run(team, program, rank, site, 0);
    }
  });
}

TEST(point_to_point_waits_while_messages_keep_arriving) {
  // Rank 0 has called all receives. Each message comes well within the deadline of the last one, but all together take
  // much longer than it.
  constexpr int kMessages = 8;
  Team team(Style::kProcesses, 2);
  const double slowdown = testing::Slowdown();
  team.SetOption("timeout_seconds", testing::ScaledSeconds(1.2, slowdown));
  Team::Program program = team.Compile([&](int rank) {
    std::vector<OpSpec> calls;
    for (int i = 0; i < kMessages; ++i) calls.push_back(rank == 0 ? Recv(1, 3, i) : Send(0, 3, i));
    return calls;
  });
  team.OnRanks([&](int rank) {
    std::deque<Called> calls;
    for (int i = 0; i < kMessages; ++i) {
      if (rank == 1) std::this_thread::sleep_for(testing::Scaled(std::chrono::milliseconds(300), slowdown));
      Begin(team, program, rank, static_cast<size_t>(i), 10 * i, &calls.emplace_back());
    }
    for (int i = 0; i < kMessages; ++i) {
      CHECK_OK(calls[static_cast<size_t>(i)].pending.Get());
      if (rank == 0) CHECK(calls[static_cast<size_t>(i)].out == Numbers(3, 10 * i));
    }
  });
}

// ---- The matching itself -----------------------------------------------------------------

TEST(point_to_point_matching_follows_mpi_rules_in_any_order) {
  // Messages arrive in random order, before and after their receives are posted: each receive gets its own message,
  // with the matching rules of MPI.
  std::mt19937 random(7);
  Communicator comm;
  comm.id = 5;
  Endpoint me;
  me.communicator = &comm;
  me.member = 0;
  for (int round = 0; round < 200; ++round) {
    TransportRouter router(0, nullptr);   // all messages are from process 0, so no credit is used
    PointToPointMatching matching(&router);
    struct Expected {
      int source;
      int64_t tag;
    };
    std::vector<Header> messages;
    std::vector<uint64_t> sent(3, 0);
    std::vector<Expected> wanted;
    for (int i = 0; i < 30; ++i) {
      Header header;
      header.communicator = comm.id;
      header.destination = 0;
      header.source = static_cast<int>(random() % 3);
      header.iteration = random() % 4;
      header.sequence = ++sent[header.source];
      messages.push_back(header);
      wanted.push_back({header.source, static_cast<int64_t>(header.iteration)});
    }
    std::shuffle(messages.begin(), messages.end(), random);
    std::shuffle(wanted.begin(), wanted.end(), random);
    // The message of each receive, in the order in which receives of its channel were posted.
    std::map<uint64_t, Header> got;
    std::vector<std::pair<uint64_t, Expected>> posted;
    size_t next_message = 0, next_receive = 0;
    auto take = [&](const MatchKey& key, const Header& header) {
      CHECK(got.emplace(key.sequence, header).second);
    };
    while (next_message < messages.size() || next_receive < wanted.size()) {
      if (next_receive == wanted.size() ||
          (next_message < messages.size() && random() % 2 == 0)) {
        const Header& header = messages[next_message++];
        if (const auto key = matching.Deliver(IncomingMessage(header, {}, {}))) take(*key, header);
        while (const auto match = matching.NextMatch()) take(match->receiver, match->part.header);
      } else {
        const Expected& receive = wanted[next_receive++];
        const MatchKey key = matching.NewOperation(me);
        posted.emplace_back(key.sequence, receive);
        for (const Arrival& part : matching.PostReceive(me, receive.source, receive.tag, key)) {
          take(key, part.header);
        }
      }
    }
    CHECK_EQ(got.size(), wanted.size());
    std::map<std::pair<int, int64_t>, uint64_t> last;
    for (const auto& [key, receive] : posted) {
      const Header& header = got[key];
      CHECK_EQ(header.source, receive.source);
      CHECK_EQ(static_cast<int64_t>(header.iteration), receive.tag);
      uint64_t& before = last[{receive.source, receive.tag}];
      CHECK(header.sequence > before);
      before = header.sequence;
      CHECK(matching.IsTaken(me, header.source, header.sequence));
    }
  }
}

}  // namespace
}  // namespace jaxccomp
