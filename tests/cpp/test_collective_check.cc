// The check of schedules must detect each kind of error: each test makes one mistake.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "collective/algorithm_spec.h"
#include "collective/check/check.h"
#include "collective/check/hazards.h"
#include "collective/registered.h"
#include "collective/schedule.h"
#include "collective_cases.h"

namespace jaxccomp {
namespace {

constexpr Slot kIn{Space::kInput, 0, 0, 64}, kOut{Space::kOutput, 0, 0, 64};

Schedule Made(const std::function<void(ScheduleBuilder&)>& make) {
  ScheduleBuilder builder;
  make(builder);
  return std::move(builder).Build();
}

// The error of a schedule of two ranks.
std::string MistakeOf(Collective collective, const std::function<void(ScheduleBuilder&, int rank)>& make,
                      bool encoded = false, bool feedback = false, int64_t block_bytes = 64) {
  Problem problem{.ranks = 2, .block_bytes = block_bytes, .encoded = encoded, .feedback = feedback};
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 2; ++rank) schedules.push_back(Made([&](ScheduleBuilder& b) { make(b, rank); }));
  return CheckSchedules(collective, problem, schedules).message();
}

void CheckSays(const std::string& mistake, const std::string& what) {
  if (mistake.find(what) == std::string::npos) CHECK_EQ(mistake, what);
}

// One send and one receive: a broadcast from rank 0.
void Bcast(ScheduleBuilder& b, int rank) {
  if (rank == 1) {
    b.Recv(0, 0, kOut);
  } else {
    b.Send(1, 0, kIn);
    b.Copy(kOut, kIn);
  }
}

TEST(collective_check_accepts_correct_schedules) {
  CHECK_EQ(MistakeOf(Collective::kBcast, Bcast), "");
  for (const Algorithm& algorithm : AlgorithmTable()) {
    if (algorithm.collective != Collective::kAllreduce) continue;
    for (bool encoded : {false, true}) {
      Problem p{.ranks = 3, .block_bytes = 100000, .chunk_bytes = 4096, .encoded = encoded, .feedback = encoded};
      std::vector<Schedule> schedules;
      for (p.rank = 0; p.rank < p.ranks; ++p.rank) schedules.push_back(algorithm.build(p));
      CHECK_OK(CheckSchedules(algorithm.collective, p, schedules));
    }
  }
}

TEST(collective_check_detects_unmatched_messages) {
  const auto bcast = [](const std::function<void(ScheduleBuilder&)>& receiver) {
    return MistakeOf(Collective::kBcast, [&](ScheduleBuilder& b, int rank) {
      rank == 1 ? receiver(b) : Bcast(b, 0);
    });
  };
  CheckSays(bcast([](ScheduleBuilder&) {}),
            "rank 0, task 0 send input0[0,64) to 1 tag 0: rank 1 has no receive");
  CheckSays(bcast([](ScheduleBuilder& b) { b.Recv(0, 1, kOut); }), "has no receive of that tag");
  CheckSays(bcast([](ScheduleBuilder& b) {
              b.Recv(0, 0, kOut);
              b.Recv(0, 1, kOut, {0});
            }),
            "rank 1, task 1 recv output0[0,64) from 0 tag 1 after 0: rank 0 has no send");
  CheckSays(bcast([](ScheduleBuilder& b) {
              b.Recv(0, 0, kOut);
              b.Recv(0, 0, kOut, {0});
            }),
            "reuses a tag");
  CheckSays(bcast([](ScheduleBuilder& b) { b.Recv(2, 0, kOut); }), "there is no such peer");
  CheckSays(bcast([](ScheduleBuilder& b) {
              b.Copy(b.Scratch(0, 64), kIn);
              b.Lane(1);
              b.Recv(0, 0, kOut);
            }),
            "its receive is in lane 1, this is lane 0");
  CheckSays(bcast([](ScheduleBuilder& b) { b.RecvGroup(0, 0, {kOut, kOut}); }), "another number of ranges");
  CheckSays(bcast([](ScheduleBuilder& b) { b.Recv(0, 0, {Space::kOutput, 0, 0, 0}); }), "another size");
}

TEST(collective_check_detects_deadlocks) {
  // Each rank sends only after it has received.
  CheckSays(MistakeOf(Collective::kAllreduce,
                      [](ScheduleBuilder& b, int rank) {
                        const Slot other = b.Scratch(0, 64);
                        const TaskId recv = b.Recv(1 - rank, 0, other);
                        b.Send(1 - rank, 0, kIn, {recv});
                      }),
            "deadlock");
}

TEST(collective_check_detects_missing_and_backward_dependencies) {
  const auto at_root = [](const std::function<void(ScheduleBuilder&)>& root) {
    return MistakeOf(Collective::kBcast, [&](ScheduleBuilder& b, int rank) {
      rank == 0 ? root(b) : Bcast(b, 1);
    });
  };
  CheckSays(at_root([](ScheduleBuilder& b) {
              b.Send(1, 0, kIn, {0});
              b.Copy(kOut, kIn);
            }),
            "depends on a later task");
  CheckSays(at_root([](ScheduleBuilder& b) {
              b.Lane(1);
              b.Copy(kOut, kIn);
              b.Lane(0);
              b.Send(1, 0, kIn, {0});
            }),
            "depends on a later lane");
  CheckSays(at_root([](ScheduleBuilder& b) {
              const Slot scratch = b.Scratch(0, 64);
              b.Copy(scratch, kIn);
              b.Send(1, 0, scratch);
              b.Copy(kOut, kIn);
            }),
            "rank 0, task 1 send scratch0[0,64) to 1 tag 0: is not ordered after task 0 copy");
}

// Hazards of results that share the operands' memory.
TEST(collective_check_detects_hazards_of_in_place_results) {
  const Schedule exchange = Made([](ScheduleBuilder& b) {
    b.Send(1, 0, kIn);
    b.Recv(1, 0, kOut);
  });
  CHECK_EQ(FindHazard(exchange, false), "");
  CHECK(FindHazard(exchange, true) != "");
  // The residual task reads the values, so no task may overwrite them earlier.
  const Schedule compares = Made([](ScheduleBuilder& b) {
    const Slot code = b.Code(0, 64), loss{Space::kResidual, 0, 0, 64};
    const TaskId encode = b.Encode(0, 0, code, kIn);
    b.Residual(loss, kIn, code, false, false, {encode});
    b.Decode(kOut, code, {encode});
  });
  CHECK_EQ(FindHazard(compares, false), "");
  CHECK(FindHazard(compares, true) != "");
  CheckSays(MistakeOf(Collective::kAllreduce,
                      [](ScheduleBuilder& b, int rank) {
                        const Slot other = b.Scratch(0, 64);
                        b.Send(1 - rank, 0, kIn);
                        const TaskId recv = b.Recv(1 - rank, 0, other);
                        std::vector<Slot> sources = {kIn, other};
                        if (rank == 1) std::swap(sources[0], sources[1]);
                        b.Merge(kOut, sources, true, {recv});
                      }),
            "Results may lie where operands do");
}

TEST(collective_check_detects_invalid_ranges) {
  const auto copies = [](Slot dst, Slot src) {
    return MistakeOf(Collective::kBcast, [&](ScheduleBuilder& b, int rank) {
      Bcast(b, rank);
      if (rank == 0) b.Copy(dst, src, {0, 1});
    });
  };
  CheckSays(copies({Space::kOutput, 0, 0, 128}, {Space::kInput, 0, 0, 128}),
            "outside its block, which is [0,64)");
  CheckSays(copies({Space::kOutput, 0, 0, 32}, {Space::kInput, 0, 0, 32}), "begins or ends inside 64 bytes");
  CheckSays(copies({Space::kOutput, 1, 0, 64}, kIn), "there is no such block");
  CheckSays(copies({Space::kScratch, 0, 0, 64}, kIn), "there is no such block");
  CheckSays(copies(kOut, {Space::kInput, 0, 0, 0}), "a range is empty");
  CheckSays(copies(kIn, kIn), "writes an operand");
  CheckSays(copies({Space::kResidualIn, 0, 0, 64}, kIn), "are added by the engine");
  CheckSays(copies({Space::kResidual, 0, 0, 64}, kIn), "there is no error feedback");
  CheckSays(copies({Space::kCode, 0, 0, 64}, kIn), "there is no codec");
  CheckSays(MistakeOf(Collective::kBcast,
                      [](ScheduleBuilder& b, int rank) {
                        b.Scratch(0, 128);
                        Bcast(b, rank);
                      }),
            "stands for the values [0,128), and there are [0,64)");
  // Values of the first tensor would be used as values of the second.
  CheckSays(MistakeOf(
                Collective::kBcast,
                [](ScheduleBuilder& b, int rank) {
                  const Slot second = b.Scratch(64, 128), whole{Space::kOutput, 0, 0, 128};
                  if (rank == 1) b.Recv(0, 0, whole);
                  else b.Send(1, 0, {Space::kInput, 0, 0, 128});
                  if (rank == 0) b.Copy(whole, {Space::kInput, 0, 0, 128});
                  b.Copy(second, kIn);
                },
                false, false, 128),
            "moves values to another address");
  CheckSays(MistakeOf(Collective::kBcast,
                      [](ScheduleBuilder& b, int rank) {
                        const Slot scratch = b.Scratch(0, 64);
                        Bcast(b, rank);
                        b.Copy(kOut, scratch, {0, 1 - rank});
                      }),
            "reads what nothing has written");
}

TEST(collective_check_detects_wrong_results) {
  CheckSays(MistakeOf(Collective::kBcast, [](ScheduleBuilder&, int) {}),
            "output0 at byte 0 is never written");
  CheckSays(MistakeOf(Collective::kReduce, [](ScheduleBuilder& b, int) { b.Copy(kOut, kIn); }),
            "rank 0: output0 at byte 0 is made of the operands of ranks 0, not of 0 1");
  // Each rank computes the sum of both, but a scan gives rank 0 only its own value.
  const auto sums = [](bool final, bool twice) {
    return [=](ScheduleBuilder& b, int rank) {
      const Slot other = b.Scratch(0, 64);
      const TaskId send = b.Send(1 - rank, 0, kIn), recv = b.Recv(1 - rank, 0, other);
      std::vector<Slot> sources = {kIn, other};
      if (rank == 1) std::swap(sources[0], sources[1]);
      const TaskId merge = b.Merge(kOut, sources, final, {send, recv});
      if (twice) b.Merge(kOut, {kOut, other}, final, {merge});
    };
  };
  CHECK_EQ(MistakeOf(Collective::kAllreduce, sums(true, false)), "");
  CheckSays(MistakeOf(Collective::kAllreduce, sums(false, false)), "is not what a final merge has given");
  CheckSays(MistakeOf(Collective::kAllreduce, sums(true, true)), "merges what a final merge has given");
  CheckSays(MistakeOf(Collective::kAllreduce, sums(false, true)), "of ranks 0 1 1, not of 0 1");
  CheckSays(MistakeOf(Collective::kScan, sums(false, false)), "of ranks 0 1, not of 0");
  CheckSays(MistakeOf(Collective::kReduce, sums(true, false)), "rank 1: output0 at byte 0 is written");
  CheckSays(MistakeOf(Collective::kAllreduce,
                      [](ScheduleBuilder& b, int) {
                        TaskId last = b.Copy(kOut, kIn);
                        for (int i = 0; i < 100; ++i) last = b.Merge(kOut, {kOut, kOut}, false, {last});
                      }),
            "more than once");
}

TEST(collective_check_detects_repeated_and_different_encodings) {
  // Each rank encodes the values that it received: with lossy codecs the results differ.
  CheckSays(MistakeOf(
                Collective::kBcast,
                [](ScheduleBuilder& b, int rank) {
                  TaskId got = kNoTask;
                  const Slot code = b.Code(0, 64), whole = b.Scratch(0, 64);
                  if (rank == 0) b.Send(1, 0, kIn);
                  else got = b.Recv(0, 0, whole);
                  const TaskId encoded = b.Encode(rank, 0, code, rank == 0 ? kIn : whole, {got});
                  b.Decode(kOut, code, {encoded, rank == 0 ? 0 : kNoTask});
                },
                /*coded=*/true),
            "ranks get different values");
  using Counts = std::function<void(ScheduleBuilder&, int block, Slot code, TaskId encoded)>;
  const auto sums = [](const Counts& counts) {
    return MistakeOf(
        Collective::kReduceScatter,
        [&](ScheduleBuilder& b, int rank) {
          const Slot code = b.Code(0, 64), came = b.Code(0, 64), own{Space::kInput, rank, 0, 64};
          const TaskId encoded = b.Encode(rank, 0, code, {Space::kInput, 1 - rank, 0, 64});
          b.Send(1 - rank, 0, code, {encoded});
          const TaskId recv = b.Recv(1 - rank, 0, came);
          std::vector<Slot> sources = {own, came};
          if (rank == 1) std::swap(sources[0], sources[1]);
          b.Merge(kOut, sources, true, {recv});
          counts(b, 1 - rank, code, encoded);
        },
        /*coded=*/true, /*feedback=*/true);
  };
  const auto residual = [](bool final, bool more, bool misplaced = false) {
    return [=](ScheduleBuilder& b, int block, Slot code, TaskId encoded) {
      const Slot lost{Space::kResidual, misplaced ? 1 - block : block, 0, 64};
      b.Residual(lost, {Space::kInput, block, 0, 64}, code, final, more, {encoded});
    };
  };
  CHECK_EQ(sums(residual(false, false)), "");
  CheckSays(sums([](ScheduleBuilder&, int, Slot, TaskId) {}), "a residual is missing");
  CheckSays(sums(residual(false, true)), "reads what nothing has written");
  CheckSays(sums(residual(true, false)), "is final where its values come from a final merge");
  CheckSays(sums(residual(false, false, true)), "belongs to another range");
}

TEST(collective_check_detects_too_much_scratch_memory) {
  constexpr int64_t kBytes = 1 << 20;
  const Slot in{Space::kInput, 0, 0, kBytes}, out{Space::kOutput, 0, 0, kBytes};
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 2; ++rank) {
    schedules.push_back(Made([&](ScheduleBuilder& b) {
      const Slot whole = b.Scratch(0, kBytes);
      if (rank == 0) {
        b.Send(1, 0, in);
        b.Copy(out, in);
      } else {
        b.Copy(out, whole, {b.Recv(0, 0, whole)});
      }
    }));
  }
  Problem p{.ranks = 2, .block_bytes = kBytes, .chunk_bytes = 4096};
  CheckSays(CheckSchedules(Collective::kBcast, p, schedules).message(),
            "rank 1: holds 1048576 bytes of scratch and code at a time, 16384 are granted");
  p.chunk_bytes = 64;
  CheckSays(CheckSchedules(Collective::kBcast, p, schedules).message(), "16384 are granted");
}

// Changes one number of one task, mostly to a wrong one. The check always ends. A schedule that passes is still
// correct: for example the same new tag at both ends.
TEST(collective_check_terminates_for_randomly_altered_schedules) {
  std::mt19937 random(5);
  const auto any = [&](std::initializer_list<int64_t> numbers) {
    return numbers.begin()[random() % numbers.size()];
  };
  int passed = 0, tried = 0;
  for (const Algorithm& algorithm : AlgorithmTable()) {
    if (algorithm.collective > Collective::kAlltoall) break;
    for (int i = 0; i < 60; ++i) {
      Problem p{.ranks = 3, .block_bytes = 1000, .chunk_bytes = 256, .encoded = i % 2 == 0};
      p.feedback = i % 4 == 0 && algorithm.collective == Collective::kAllreduce;
      std::vector<Schedule> schedules;
      for (p.rank = 0; p.rank < p.ranks; ++p.rank) schedules.push_back(algorithm.build(p));
      Schedule& schedule = schedules[random() % 3];
      if (schedule.tasks.empty()) continue;
      Task& task = schedule.tasks[random() % schedule.tasks.size()];
      const bool of_source = task.source_count > 0 && random() % 2 == 0;
      Slot& slot = of_source ? schedule.sources[task.first_source] : task.dst;
      switch (random() % 9) {
        case 0: task.kind = static_cast<TaskKind>(random() % 7); break;
        case 1: task.lane = static_cast<int32_t>(any({-1, 0, 1, 7, INT32_MAX})); break;
        case 2: task.peer = static_cast<int32_t>(any({-1, 0, 1, 2, 3, INT32_MAX})); break;
        case 3: task.tag += 1; break;
        case 4: task.final = !task.final; break;
        case 5: slot.space = static_cast<Space>(random() % 6); break;
        case 6: slot.block = static_cast<int32_t>(any({-1, 0, 1, 2, INT32_MAX})); break;
        case 7: slot.begin = any({-64, 0, 64, 100, 256, 1000, INT64_MAX / 2}); break;
        default:
          if (task.dep_count > 0) schedule.deps[task.first_dep] = static_cast<TaskId>(any({-1, 0, 1, 99}));
      }
      ++tried;
      passed += CheckSchedules(algorithm.collective, p, schedules).ok();
    }
  }
  CHECK(tried > 1000);
  CHECK(passed < tried / 2);
}

TEST(collective_registered_schedules_apply_to_one_problem_only) {
  Problem p{.ranks = 2, .block_bytes = 64, .chunk_bytes = 4096};
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 2; ++rank) schedules.push_back(Made([&](ScheduleBuilder& b) { Bcast(b, rank); }));
  KeepRegistered("mine#1", "mine", Collective::kBcast, p, schedules);
  const auto spec = ParseAlgorithm(Collective::kBcast, "mine#1");
  if (!CHECK_OK(spec)) return;
  spec->ApplyTo(&p);
  p.rank = 1;
  const auto algorithm = SelectAlgorithm(Collective::kBcast, *spec, p);
  if (!CHECK_OK(algorithm)) return;
  CHECK_EQ((*algorithm)->name, "mine");
  CHECK_EQ((*algorithm)->build(p).ToString(), "0 recv output0[0,64) from 0 tag 0\n");
  p.block_bytes = 128;
  CheckSays(SelectAlgorithm(Collective::kBcast, *spec, p).status().message(),
            "were made for 2 ranks, root 0, blocks of 64 bytes, not for 2 ranks, root 0, blocks of 128");
  CheckSays(ParseAlgorithm(Collective::kBcast, "mine#2").status().message(), "has made no such schedules");
  CheckSays(ParseAlgorithm(Collective::kReduce, "mine#1").status().message(), "has made no such schedules");
}

}  // namespace
}  // namespace jaxccomp
