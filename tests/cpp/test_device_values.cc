// Collectives on values in a device's memory give the bits, and send the bytes, that they do on values in
// the host's.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "common/half.h"
#include "device_team.h"
#include "fake_cuda_nvcomp.h"

namespace jaxccomp {
namespace {

using testing::Array;
using testing::DeviceKind;
using testing::DeviceTeam;
using testing::RankArrays;
using testing::Scramble;
using testing::Style;
using testing::Team;
using Place = DeviceTeam::Place;

constexpr Collective kCollectives[] = {
    Collective::kBcast,      Collective::kAllreduce,     Collective::kReduce,
    Collective::kAllgather,  Collective::kGather,        Collective::kScatter,
    Collective::kReduceScatter, Collective::kAlltoall,   Collective::kAllgatherv,
    Collective::kGatherv,    Collective::kScatterv,      Collective::kReduceScatterv,
    Collective::kAlltoallv,  Collective::kScan,          Collective::kExscan,
    Collective::kBarrier,    Collective::kPermute,
};

void FillWithNumbers(Array* array, uint32_t seed) {
  const int64_t size_bytes = SizeBytes(array->dtype);
  for (size_t i = 0; i * size_bytes < array->bytes.size(); ++i) {
    const uint32_t bits = Scramble(static_cast<uint32_t>(i) * 31 + seed);
    const float value = (static_cast<float>(bits) - 0x1p31f) * 0x1p-27f;
    const BFloat16 half = ToBFloat16(value);
    std::byte* const at = array->bytes.data() + i * size_bytes;
    if (array->dtype == DType::kFloat32) std::memcpy(at, &value, sizeof(value));
    else if (array->dtype == DType::kBFloat16) std::memcpy(at, &half, sizeof(half));
    else std::memcpy(at, &bits, sizeof(bits));
  }
}

struct Exercise {
  OpSpec spec;
  int ranks = 1;
  std::vector<std::pair<DType, int64_t>> leaves;   // elements of a block, or of a row
  bool in_place = false;
  std::shared_ptr<const Codec> codec = {};   // in place of the spec's
};

int64_t Rows(const Exercise& e, int rank, bool input) {
  const CollectiveInfo& info = Info(e.spec.collective);
  const Blocks blocks = input ? info.input : info.output;
  const auto& c = e.spec.counts;
  if (c.empty()) return blocks == Blocks::kOne ? 1 : e.ranks;
  int64_t rows = 0;
  if (e.spec.collective == Collective::kAlltoallv) {
    for (int i = 0; i < e.ranks; ++i) rows += c[input ? rank * e.ranks + i : i * e.ranks + rank];
    return rows;
  }
  if (blocks == Blocks::kOne) return c[rank];
  for (int64_t count : c) rows += count;
  return rows;
}

RankArrays ArraysOf(const Exercise& e, int rank) {
  RankArrays arrays;
  arrays.in_place = e.in_place;
  for (size_t i = 0; i < e.leaves.size(); ++i) {
    const auto [dtype, count] = e.leaves[i];
    Array& input = arrays.inputs.emplace_back(dtype, Rows(e, rank, true), count);
    FillWithNumbers(&input, static_cast<uint32_t>(rank * 100 + static_cast<int>(i)));
  }
  for (int copies = 0; copies < (e.spec.feedback ? 2 : 1); ++copies) {
    for (const auto& [dtype, count] : e.leaves) {
      arrays.outputs.emplace_back(dtype, Rows(e, rank, false), count);
    }
  }
  if (e.in_place) arrays.outputs = arrays.inputs;
  if (e.spec.referenced) {   // the same everywhere, and near the root's values
    Exercise plain = e;
    plain.spec.referenced = false;
    arrays.refs = ArraysOf(plain, static_cast<int>(e.spec.root)).inputs;
    for (Array& ref : arrays.refs) {
      for (size_t i = 0; i < ref.bytes.size(); i += 97) ref.bytes[i] ^= std::byte{1};
    }
  }
  return arrays;
}

struct Outcome {
  std::vector<RankArrays> arrays;
  std::vector<Status> statuses;
  int64_t sent_bytes = 0;
};

// Runs one program with all the exercises, one after the other.
std::vector<Outcome> Run(DeviceTeam& on, int64_t chunk_bytes,
                         const std::vector<Exercise>& exercises) {
  Team& team = *on.team;
  std::vector<OpSpec> specs;
  for (const Exercise& e : exercises) specs.push_back(e.spec);
  Team::Program program = team.Compile(specs);
  for (size_t i = 0; i < exercises.size(); ++i) {
    for (int rank = 0; rank < team.ranks && exercises[i].codec != nullptr; ++rank) {
      program.At(rank, i).codec = exercises[i].codec;
    }
  }
  std::vector<Outcome> outcomes(exercises.size());
  const auto sent_bytes = [&](Collective c) {
    int64_t bytes = 0;
    const int engines = team.style() == Style::kDevices ? 1 : team.ranks;
    for (int i = 0; i < engines; ++i) {
      const CollectiveStats stats = team.EngineOf(i).GetStats()[static_cast<size_t>(c)];
      bytes += stats.sent_bytes;
      // Blocks are whole pages.
      if (chunk_bytes >= 64 << 10) CHECK(stats.peak_bytes <= stats.bound_bytes * 9 / 8);
    }
    return bytes;
  };
  const int64_t run_id = team.NextRunId();
  for (size_t i = 0; i < exercises.size(); ++i) {
    outcomes[i].arrays.resize(static_cast<size_t>(team.ranks));
    outcomes[i].statuses.resize(static_cast<size_t>(team.ranks));
    const int64_t before = sent_bytes(specs[i].collective);
    team.OnRanks([&](int rank) {
      RankArrays& arrays = outcomes[i].arrays[rank];
      arrays = ArraysOf(exercises[i], rank);
      outcomes[i].statuses[rank] = on.Run(rank, program.At(rank, i), &arrays, run_id);
    });
    outcomes[i].sent_bytes = sent_bytes(specs[i].collective) - before;
  }
  return outcomes;
}

void Compare(DeviceKind kind, Style style, int ranks, int64_t chunk_bytes, const std::vector<Exercise>& exercises) {
  std::vector<std::vector<Outcome>> runs;
  for (Place place : {Place::kHost, Place::kDevice, Place::kMixed}) {
    DeviceTeam on(kind, style, ranks, place);
    on.team->SetOption("chunk_bytes", std::to_string(chunk_bytes));
    runs.push_back(Run(on, chunk_bytes, exercises));
  }
  for (size_t run = 0; run < runs.size(); ++run) {
    for (size_t i = 0; i < exercises.size(); ++i) {
      const OpSpec& spec = exercises[i].spec;
      const Codec* const codec = exercises[i].codec.get();
      const std::string what = spec.ToString() +
                               (codec != nullptr ? " with " + codec->traits().spec : "") + " algorithm " + spec.algorithm + " of " +
                               std::to_string(ranks) + (style == Style::kDevices ? " devices" : "") +
                               (run == 0 ? " host" : run == 1 ? " device" : " mixed") +
                               (exercises[i].in_place ? " in place" : "") + " size " +
                               std::to_string(exercises[i].leaves[0].second);
      for (int rank = 0; rank < ranks; ++rank) {
        const Status& status = runs[run][i].statuses[rank];
        if (!status.ok()) CHECK_EQ(what + ": " + status.message(), "");
        if (runs[run][i].arrays[rank].outputs != runs[0][i].arrays[rank].outputs) {
          CHECK_EQ(what + ": rank " + std::to_string(rank) + " has other bits", "");
        }
      }
      if (runs[run][i].sent_bytes != runs[0][i].sent_bytes) {
        CHECK_EQ(what + " sent " + std::to_string(runs[run][i].sent_bytes),
                 std::to_string(runs[0][i].sent_bytes));
      }
    }
  }
}

Exercise Of(Collective collective, int ranks, const std::string& codec, int64_t count) {
  Exercise e;
  e.spec.collective = collective;
  e.spec.codec = codec;
  e.spec.root = Info(collective).rooted ? (ranks * 5 / 7) % ranks : -1;
  e.spec.shapes = std::to_string(count);
  e.ranks = ranks;
  const bool matrix = collective == Collective::kAlltoallv;
  const bool varies = matrix || collective == Collective::kAllgatherv ||
                      collective == Collective::kGatherv || collective == Collective::kScatterv ||
                      collective == Collective::kReduceScatterv;
  if (varies) {
    for (int i = 0; i < (matrix ? ranks * ranks : ranks); ++i) e.spec.counts.push_back(i * 5 % 4);
  }
  if (collective == Collective::kPermute) {
    for (int r = 0; r < ranks; ++r) {   // some to themselves, some to nobody
      if (r % 3 != 2) e.spec.pairs.insert(e.spec.pairs.end(), {r, ranks - 1 - r});
    }
  }
  e.leaves = {{DType::kFloat32, count}, {DType::kInt32, count / 3}, {DType::kBFloat16, count / 2 + 1}};
  return e;
}

// Some that the device runs.
std::vector<const char*> Codecs(DeviceKind kind) {
  return {"raw", "lossless", "int8:rounding=stochastic", "bf16|lossless",
          kind == DeviceKind::kCuda ? "ternary" : "topk"};
}

DEVICE_TEST(device_every_collective_and_codec) {
  for (Style style : testing::kStyles) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      std::vector<Exercise> exercises;
      for (Collective c : kCollectives) {
        for (const char* codec : Codecs(kind)) {
          for (int64_t count : {0, 1, 1003}) exercises.push_back(Of(c, ranks, codec, count));
        }
      }
      Compare(kind, style, ranks, 4096, exercises);
    }
  }
}

DEVICE_TEST(device_every_algorithm_in_chunks) {
  for (Style style : testing::kStyles) {
    for (int ranks : {2, 3, 5}) {
      std::vector<Exercise> exercises;
      for (const Algorithm& a : AlgorithmTable()) {
        if (std::find(std::begin(kCollectives), std::end(kCollectives), a.collective) ==
            std::end(kCollectives)) {
          continue;
        }
        for (const char* codec : {"raw", "bf16|lossless"}) {
          Exercise e = Of(a.collective, ranks, codec, 90011);
          e.spec.algorithm = a.name;
          exercises.push_back(e);
        }
      }
      Compare(kind, style, ranks, 64 << 10, exercises);
    }
  }
}

// nvCOMP's, which the device prepares.
DEVICE_TEST(device_codecs_that_are_prepared) {
  for (Style style : testing::kStyles) {
    for (int ranks : {1, 3}) {
      std::vector<Exercise> exercises;
      for (Collective c : {Collective::kBcast, Collective::kAllreduce, Collective::kAllgather,
                           Collective::kAlltoall}) {
        for (const char* codec : {"nvcomp.ans", "nvcomp.bitcomp", "bf16|nvcomp.lz4"}) {
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
  for (Style style : testing::kStyles) {
    for (int ranks : {1, 3, 4}) {
      std::vector<Exercise> exercises;
      for (const char* codec : Codecs(kind)) {
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
  for (Style style : testing::kStyles) {
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
    for (const char* codec : Codecs(kind)) {
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
    for (const char* codec : Codecs(kind)) {
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
