// Allreduces of whole numbers, whose sums are known.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "device_team.h"

namespace jaxccomp::testing {

inline OpSpec Allreduce(int64_t count, const std::string& codec = "raw") {
  OpSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.codec = codec;
  spec.shapes = "int32[" + std::to_string(count) + "]";
  spec.where = "step.py:" + std::to_string(count);
  return spec;
}

inline RankArrays Numbers(int64_t count, int first) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<int32_t>(i % 1000);
  return {.inputs = {Int32s(values)},
          .outputs = {Int32s(std::vector<int32_t>(values.size(), -1))},
          .refs = {}};
}

// Checks for the sum of Numbers(count, first), Numbers(count, first + 1) and so on.
inline bool IsSum(const RankArrays& arrays, int64_t count, int ranks, int first) {
  const std::vector<int32_t> values = ValuesOf<int32_t>(arrays.outputs[0]);
  if (!CHECK_EQ(std::ssize(values), count)) return false;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t sum = (first + i % 1000) * ranks + ranks * (ranks - 1) / 2;
    if (!CHECK_EQ(values[i], sum)) return false;
  }
  return true;
}

struct CountAndCodec {
  int64_t count;
  std::string codec = "raw";
};

// Shutdown of 3 ranks while their allreduces are under way, at different moments: all end, also those for
// which the last rank never comes. `prepare` is done to each team.
template <typename F>
void ShutDownInFlight(DeviceKind kind, Style style, int64_t chunk_bytes,
                      const std::vector<CountAndCodec>& calls, F prepare) {
  const auto count = static_cast<int>(calls.size());
  std::vector<OpSpec> specs;
  for (const CountAndCodec& each : calls) specs.push_back(Allreduce(each.count, each.codec));
  for (int when = 0; when < 6; ++when) {
    DeviceTeam on(kind, style, 3, DeviceTeam::Place::kMixed);
    on.team->SetOption("chunk_bytes", std::to_string(chunk_bytes));
    on.team->SetOption("timeout_seconds", "30");
    prepare(on);
    Team::Program program = on.team->Compile(specs);
    std::vector<std::vector<RankArrays>> arrays(3);
    std::vector<std::unique_ptr<OnDevice>> held[3];
    std::vector<Pending> pending[3];
    for (int rank = 0; rank < 3; ++rank) {
      for (const CountAndCodec& each : calls) arrays[rank].push_back(Numbers(each.count, rank));
      for (int i = 0; i < count; ++i) {
        if (rank == 2 && i > when % count) continue;
        pending[rank].push_back(
            on.Start(rank, program.At(rank, i), &arrays[rank][i], 1, &held[rank]));
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(when * 400));
    on.team->OnRanks([&](int rank) { on.team->EngineOf(rank).Shutdown(); });
    for (int rank = 0; rank < 3; ++rank) {
      for (const Pending& p : pending[rank]) static_cast<void>(p.Get());
      on.streams[rank]->Finish();
    }
  }
}

}  // namespace jaxccomp::testing
