// Collectives on values in a device's memory, compared with the same on values in the host's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "common/half.h"
#include "device_team.h"

namespace jaxccomp::testing {

// The styles in which a test of many values runs on a kind of device: both with JAXCCOMP_TEST_ALL
// (`make test-all`), else one on each kind.
inline std::vector<Style> StylesOf(DeviceKind kind) {
  if (std::getenv("JAXCCOMP_TEST_ALL") != nullptr) return {std::begin(kStyles), std::end(kStyles)};
  return {kind == DeviceKind::kCuda ? Style::kProcesses : Style::kDevices};
}

inline constexpr Collective kCollectives[] = {
    Collective::kBcast,      Collective::kAllreduce,     Collective::kReduce,
    Collective::kAllgather,  Collective::kGather,        Collective::kScatter,
    Collective::kReduceScatter, Collective::kAlltoall,   Collective::kAllgatherv,
    Collective::kGatherv,    Collective::kScatterv,      Collective::kReduceScatterv,
    Collective::kAlltoallv,  Collective::kScan,          Collective::kExscan,
    Collective::kBarrier,    Collective::kPermute,
};

inline void FillWithNumbers(Array* array, uint32_t seed) {
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

inline int64_t Rows(const Exercise& e, int rank, bool input) {
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

inline RankArrays ArraysOf(const Exercise& e, int rank) {
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
inline std::vector<Outcome> Run(DeviceTeam& on, int64_t chunk_bytes,
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

// On the host, on devices, and on either by rank; `prepare` is done to each team, and `check` when it is
// done.
inline void Compare(DeviceKind kind, Style style, int ranks, int64_t chunk_bytes,
                    const std::vector<Exercise>& exercises,
                    const std::function<void(DeviceTeam&)>& prepare,
                    const std::function<void(DeviceTeam&)>& check) {
  using Place = DeviceTeam::Place;
  std::vector<std::vector<Outcome>> runs;
  for (Place place : {Place::kHost, Place::kDevice, Place::kMixed}) {
    DeviceTeam on(kind, style, ranks, place);
    on.team->SetOption("chunk_bytes", std::to_string(chunk_bytes));
    prepare(on);
    runs.push_back(Run(on, chunk_bytes, exercises));
    check(on);
  }
  for (size_t run = 0; run < runs.size(); ++run) {
    for (size_t i = 0; i < exercises.size(); ++i) {
      const OpSpec& spec = exercises[i].spec;
      const Codec* const codec = exercises[i].codec.get();
      const std::string what = spec.ToString() +
                               (codec != nullptr ? " with " + codec->traits().spec : "") +
                               " algorithm " + spec.algorithm + " of " +
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

// The same; with `least_ipc_bytes` devices export messages to each other from that size on. Returns what
// was exported.
inline int64_t Compare(DeviceKind kind, Style style, int ranks, int64_t chunk_bytes,
                       const std::vector<Exercise>& exercises, int64_t least_ipc_bytes = 0,
                       int64_t shared_bytes = 64 << 20,
                       const std::function<void(DeviceTeam&)>& prepare = [](DeviceTeam&) {}) {
  int64_t ipc_bytes = 0;
  Compare(kind, style, ranks, chunk_bytes, exercises,
          [&](DeviceTeam& on) {
            prepare(on);
            if (least_ipc_bytes > 0) on.Share(least_ipc_bytes, shared_bytes);
          },
          [&](DeviceTeam& on) {
            ipc_bytes += on.IpcBytes();
            if (least_ipc_bytes > 0) on.CheckAllReturned();
          });
  return ipc_bytes;
}

inline Exercise Of(Collective collective, int ranks, const std::string& codec, int64_t count) {
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

// Every algorithm, in several chunks.
inline std::vector<Exercise> EveryAlgorithm(int ranks) {
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
  return exercises;
}

// Some that devices run.
inline constexpr const char* kExercisedCodecs[] = {
    "raw", "lossless", "int8:rounding=stochastic", "bf16|lossless", "topk", "dgc:density=0.05"};

}  // namespace jaxccomp::testing
