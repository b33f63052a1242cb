// Collectives on values in a device's memory give the bits, and send the bytes, that they do on values in
// the host's.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "device_exercises.h"
#include "device_team.h"
#include "fake_cuda_nvcomp.h"

namespace jaxccomp {
namespace {

using testing::ArraysOf;
using testing::Compare;
using testing::DeviceKind;
using testing::DeviceTeam;
using testing::EveryAlgorithm;
using testing::Exercise;
using testing::FillWithNumbers;
using testing::kCollectives;
using testing::kExercisedCodecs;
using testing::Of;
using testing::RankArrays;
using testing::SomeOf;
using testing::Style;
using testing::Team;
using Place = DeviceTeam::Place;

DEVICE_TEST(device_every_collective_and_codec) {
  for (Style style : testing::StylesOf(kind)) {
    for (int ranks : SomeOf<int>({1, 2, 3, 4, 5})) {
      std::vector<Exercise> exercises;
      for (Collective c : kCollectives) {
        for (const char* codec : kExercisedCodecs) {
          for (int64_t count : {0, 1, 1003}) exercises.push_back(Of(c, ranks, codec, count));
        }
      }
      Compare(kind, style, ranks, 4096, exercises);
    }
  }
}

DEVICE_TEST(device_every_algorithm_in_chunks) {
  for (Style style : testing::StylesOf(kind)) {
    for (int ranks : SomeOf<int>({2, 3, 5})) {
      Compare(kind, style, ranks, 64 << 10, EveryAlgorithm(ranks));
    }
  }
}

// nvCOMP's, which the device prepares.
DEVICE_TEST(device_codecs_that_are_prepared) {
  for (Style style : testing::StylesOf(kind)) {
    for (int ranks : {1, 3}) {
      std::vector<Exercise> exercises;
      for (Collective c : {Collective::kBcast, Collective::kAllreduce, Collective::kAllgather,
                           Collective::kAlltoall}) {
        for (const char* codec : {"nvcomp.ans", "nvcomp.zstd", "bf16|nvcomp.lz4"}) {
          for (int64_t count : {0, 1003}) {
            Exercise e = Of(c, ranks, "lossless", count);
            e.codec = testing::HostNvcomp(codec);
            exercises.push_back(e);
            if (c != Collective::kBcast || count == 0) continue;
            e.spec.referenced = true;
            exercises.push_back(e);
          }
        }
      }
      Compare(kind, style, ranks, 4096, exercises);
    }
  }
}

DEVICE_TEST(device_in_place) {
  for (Style style : testing::kStyles) {
    std::vector<Exercise> exercises;
    for (Collective c : {Collective::kBcast, Collective::kAllreduce, Collective::kReduce,
                         Collective::kScan, Collective::kExscan}) {
      for (const Algorithm& a : AlgorithmTable()) {
        if (a.collective != c) continue;
        for (const char* codec : {"raw", "int8"}) {
          Exercise e = Of(c, 4, codec, 9001);
          e.spec.algorithm = a.name;
          e.in_place = true;
          exercises.push_back(e);
        }
      }
    }
    Compare(kind, style, 4, 4096, exercises);
  }
}

DEVICE_TEST(device_feedback_and_means) {
  for (Style style : testing::StylesOf(kind)) {
    for (int ranks : {1, 3, 4}) {
      std::vector<Exercise> exercises;
      for (const char* codec : kExercisedCodecs) {
        for (bool mean : {false, true}) {
          Exercise e = Of(Collective::kAllreduce, ranks, codec, 5003);
          e.leaves.erase(e.leaves.begin() + 1);   // integers have no mean
          e.spec.mean = mean;
          exercises.push_back(e);
          e.spec.feedback = true;
          exercises.push_back(e);
        }
      }
      Compare(kind, style, ranks, 4096, exercises);
    }
  }
}

DEVICE_TEST(device_references) {
  for (Style style : testing::StylesOf(kind)) {
    for (int ranks : {1, 2, 4}) {
      std::vector<Exercise> exercises;
      for (const char* codec : {"raw", "lossless", "int8", "bf16|lossless"}) {
        Exercise e = Of(Collective::kBcast, ranks, codec, 5003);
        e.spec.referenced = true;
        exercises.push_back(e);
      }
      Compare(kind, style, ranks, 4096, exercises);
    }
  }
}

// The sizes lie on the device too.
DEVICE_TEST(device_ragged_exchange) {
  constexpr int kRankCount = 3, kRows = 40;
  for (Style style : testing::kStyles) {
    for (const char* codec : kExercisedCodecs) {
      std::vector<std::vector<RankArrays>> runs;
      for (Place place : {Place::kHost, Place::kDevice, Place::kMixed}) {
        DeviceTeam on(kind, style, kRankCount, place);
        on.team->SetOption("chunk_bytes", "4096");
        OpSpec spec;
        spec.collective = Collective::kRaggedAlltoall;
        spec.codec = codec;
        Team::Program program = on.team->Compile({spec, spec});
        // From rank s to rank d, in a launch: in both cases within the rows.
        const auto rows = [](int launch, int s, int d) { return (s * 3 + d * 5 + launch) % 11; };
        auto& arrays = runs.emplace_back(kRankCount * 2);
        on.team->OnRanks([&](int rank) {
          for (int launch = 0; launch < 2; ++launch) {
            RankArrays& mine = arrays[rank * 2 + launch];
            for (uint32_t i = 0; i < 2; ++i) {
              FillWithNumbers(&mine.inputs.emplace_back(DType::kFloat32, kRows, 101),
                              static_cast<uint32_t>(rank) * 10 + i);
            }
            std::vector<int32_t> lists[4];   // input offsets, sent, output offsets, received
            for (int peer = 0, at = 0; peer < kRankCount; ++peer) {
              lists[0].push_back(at);
              lists[1].push_back(rows(launch, rank, peer));
              at += lists[1].back();
              lists[3].push_back(rows(launch, peer, rank));
              lists[2].push_back(peer * 11);
            }
            for (const auto& list : lists) mine.inputs.push_back(testing::Int32s(list));
            mine.outputs.emplace_back(DType::kFloat32, kRows, 101);
            CHECK_OK(on.Run(rank, program.At(rank, launch), &mine, 1));
          }
        });
      }
      CHECK(runs[1] == runs[0]);
      CHECK(runs[2] == runs[0]);
    }
  }
}

// What differs between the ranks: a pair, and a shift around all.
DEVICE_TEST(device_point_to_point) {
  for (Style style : testing::kStyles) {
    for (const char* codec : kExercisedCodecs) {
      constexpr int kRankCount = 4;
      DeviceTeam on(kind, style, kRankCount, Place::kMixed);
      Team::Program program = on.team->Compile([&](int rank) {
        OpSpec pair, shift;
        pair.collective = rank % 2 == 0 ? Collective::kSend : Collective::kRecv;
        pair.pairs = {rank ^ 1};
        shift.collective = Collective::kSendrecv;
        shift.pairs = {(rank + 1) % kRankCount, (rank + kRankCount - 1) % kRankCount};
        pair.codec = shift.codec = codec;
        return std::vector<OpSpec>{pair, shift};
      });
      std::vector<RankArrays> pairs(kRankCount), shifts(kRankCount);
      on.team->OnRanks([&](int rank) {
        pairs[rank] = shifts[rank] = ArraysOf(Of(Collective::kBcast, kRankCount, codec, 3001), rank);
        CHECK_OK(on.Run(rank, program.At(rank, 0), &pairs[rank], 1));
        CHECK_OK(on.Run(rank, program.At(rank, 1), &shifts[rank], 1));
      });
      const bool exact = std::string_view(codec) == "raw" || std::string_view(codec) == "lossless";
      for (int rank = 0; rank < kRankCount; ++rank) {
        // A send passes on what it is given.
        const bool sends = rank % 2 == 0;
        if (sends || exact) CHECK(pairs[rank].outputs == pairs[sends ? rank : rank - 1].inputs);
        const int before = (rank + kRankCount - 1) % kRankCount;
        if (exact) CHECK(shifts[rank].outputs == shifts[before].inputs);
      }
    }
  }
}

}  // namespace
}  // namespace jaxccomp
