// The stage: every collective on GPUs, in parts, compared with the host; and its errors.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "cuda/stage/packed_codec.h"
#include "cuda/stage/parts.h"
#include "cuda/stage/stage.h"
#include "fake_gpu.h"
#include "lossy_codecs.h"
#include "team.h"

namespace jaxccomp {
namespace {

using namespace testing;

void FillWithNumbers(Array* array, uint32_t seed) {
  const int64_t size = SizeBytes(array->dtype);
  for (int64_t i = 0; i * size < std::ssize(array->bytes); ++i) {
    const uint32_t bits = Scramble(static_cast<uint32_t>(i) * 31 + seed);
    const float value = static_cast<float>(bits % 4096) * 0.125f;
    const uint32_t raw = IsFloating(array->dtype) ? __builtin_bit_cast(uint32_t, value) : bits;
    // The upper half of a float is a bfloat16.
    const auto* const from = reinterpret_cast<const std::byte*>(&raw) + (size == 2 ? 2 : 0);
    std::memcpy(array->bytes.data() + i * size, from, static_cast<size_t>(std::min<int64_t>(size, 4)));
  }
}

struct Exercise {
  OpSpec spec;
  int ranks = 1;
  std::vector<std::pair<DType, int64_t>> leaves;   // elements of a row
};

int64_t RowsOf(const Exercise& e, int rank, bool input) {
  const CollectiveInfo& info = Info(e.spec.collective);
  const auto& c = e.spec.counts;
  if (c.empty()) return (input ? info.input : info.output) == Blocks::kOne ? 1 : e.ranks;
  int64_t rows = 0;
  if (e.spec.collective == Collective::kAlltoallv) {
    for (int i = 0; i < e.ranks; ++i) rows += c[input ? rank * e.ranks + i : i * e.ranks + rank];
    return rows;
  }
  if ((input ? info.input : info.output) == Blocks::kOne) return c[rank];
  for (int64_t count : c) rows += count;
  return rows;
}

struct RankArrays {
  std::vector<Array> inputs, outputs;
};

RankArrays ArraysOf(const Exercise& e, int rank) {
  RankArrays arrays;
  for (size_t i = 0; i < e.leaves.size(); ++i) {
    const auto [dtype, count] = e.leaves[i];
    FillWithNumbers(&arrays.inputs.emplace_back(dtype, RowsOf(e, rank, true), count),
                    static_cast<uint32_t>(rank * 100) + static_cast<uint32_t>(i));
    arrays.outputs.emplace_back(dtype, RowsOf(e, rank, false), count);
  }
  return arrays;
}

Call CallOn(RankArrays* arrays, int64_t run_id) {
  Call call;
  for (Array& array : arrays->inputs) call.inputs.push_back(array.View());
  for (Array& array : arrays->outputs) call.outputs.push_back(array.View());
  call.run_id = run_id;
  return call;
}

// A GPU for each rank, with the stream of its program.
class GpuTeam {
 public:
  GpuTeam(Style style, int ranks, int64_t part_bytes = 4096) : team(style, ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      gpus.push_back(std::make_unique<FakeGpu>("fake:" + std::to_string(rank)));
      stages.push_back(std::make_unique<Stage>(gpus.back().get()));
      streams.push_back(std::make_unique<FakeStream>(static_cast<uint32_t>(rank) + 3, 20));
    }
    team.SetOption("device_part_bytes", std::to_string(part_bytes));
    // Algorithms that cut their operands do so here.
    team.SetOption("chunk_bytes", "4096");
  }

  // Compiles a program of one call on each rank.
  Status Compile(OpSpec spec) {
    sites.clear();
    for (int rank = 0; rank < team.ranks; ++rank) {
      OpSpec own = spec;
      if (team.style() == Style::kProcesses) {
        own.communicator = "world";
      } else {
        for (int r = 0; r < team.ranks; ++r) own.groups.push_back(team.DeviceOf(r));
        own.group_size = team.ranks;
      }
      if (spec.collective == Collective::kSendrecv) {
        own.pairs = {(rank + 1) % team.ranks, (rank + team.ranks - 1) % team.ranks};
      }
      Result<std::unique_ptr<StageSite>> site = MakeStageSite(std::move(own));
      if (!site.ok()) return site.status();
      sites.push_back(std::move(*site));
      if (team.style() == Style::kDevices && rank == 0) {
        // One program for all devices.
        for (int r = 1; r < team.ranks; ++r) sites.push_back(nullptr);
        break;
      }
      CloseProgram("");
    }
    CloseProgram("");
    return Status::Ok();
  }
  StageSite& SiteOf(int rank) { return *sites[team.style() == Style::kDevices ? 0 : static_cast<size_t>(rank)]; }

  // Runs the call on arrays in the GPU's memory, and copies the results back.
  Status Run(int rank, RankArrays* arrays, int64_t run_id, bool in_place = false) {
    FakeGpu& gpu = *gpus[static_cast<size_t>(rank)];
    FakeStream& stream = *streams[static_cast<size_t>(rank)];
    Call call = CallOn(arrays, run_id);
    call.device = team.DeviceOf(rank);
    const auto place = [&](std::vector<Array>* all, std::vector<Tensor>* tensors) {
      for (size_t i = 0; i < all->size(); ++i) {
        std::byte* const at = gpu.memory.Take(std::max<int64_t>((*tensors)[i].bytes, 1));
        std::ranges::copy((*all)[i].bytes, gpu.memory.Shadow(at));
        (*tensors)[i].data = at;
      }
    };
    place(&arrays->inputs, &call.inputs);
    place(&arrays->outputs, &call.outputs);
    std::vector<Tensor> taken = call.inputs;
    taken.insert(taken.end(), call.outputs.begin(), call.outputs.end());
    if (in_place) {
      for (size_t i = 0; i < call.outputs.size(); ++i) call.outputs[i].data = call.inputs[i].data;
    }
    const Status status = stages[static_cast<size_t>(rank)]->Run(team.EngineOf(rank), SiteOf(rank), call, &stream);
    stream.Finish();
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      std::copy_n(gpu.memory.Shadow(call.outputs[i].data), arrays->outputs[i].bytes.size(),
                  arrays->outputs[i].bytes.data());
    }
    for (const Tensor& tensor : taken) gpu.memory.GiveBack(static_cast<std::byte*>(tensor.data));
    return status;
  }

  std::vector<Status> RunAll(std::vector<RankArrays>* arrays, bool in_place = false) {
    const int64_t run_id = team.NextRunId();
    std::vector<Status> all(static_cast<size_t>(team.ranks));
    team.OnRanks([&](int rank) {
      all[static_cast<size_t>(rank)] = Run(rank, &(*arrays)[static_cast<size_t>(rank)], run_id, in_place);
    });
    return all;
  }

  Team team;
  std::vector<std::unique_ptr<FakeGpu>> gpus;
  std::vector<std::unique_ptr<Stage>> stages;
  std::vector<std::unique_ptr<FakeStream>> streams;
  std::vector<std::unique_ptr<StageSite>> sites;
};

// The engine's results on the host, without a codec.
std::vector<RankArrays> OnHost(Style style, const Exercise& e) {
  Team team(style, e.ranks);
  OpSpec spec = e.spec;
  spec.codec = "raw";
  auto program = team.Compile([&](int rank) {
    OpSpec own = spec;
    if (spec.collective == Collective::kSendrecv) {
      own.pairs = {(rank + 1) % e.ranks, (rank + e.ranks - 1) % e.ranks};
    }
    return std::vector<OpSpec>{own};
  });
  std::vector<RankArrays> arrays;
  for (int rank = 0; rank < e.ranks; ++rank) arrays.push_back(ArraysOf(e, rank));
  const int64_t run_id = team.NextRunId();
  team.OnRanks([&](int rank) {
    CHECK_OK(team.Run(rank, program.At(style == Style::kDevices ? 0 : rank, 0),
                      CallOn(&arrays[static_cast<size_t>(rank)], run_id)));
  });
  return arrays;
}

void Compare(Style style, const Exercise& e, int64_t part_bytes, bool in_place = false) {
  GpuTeam on(style, e.ranks, part_bytes);
  if (!CHECK_OK(on.Compile(e.spec))) return;
  const std::vector<RankArrays> expected = OnHost(style, e);
  for (int launch = 0; launch < 2; ++launch) {
    std::vector<RankArrays> arrays;
    for (int rank = 0; rank < e.ranks; ++rank) arrays.push_back(ArraysOf(e, rank));
    for (const Status& status : on.RunAll(&arrays, in_place)) CHECK_OK(status);
    for (int rank = 0; rank < e.ranks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      if (!CHECK(arrays[r].outputs == expected[r].outputs)) {
        CHECK_EQ(e.spec.ToString(), "rank " + std::to_string(rank));
      }
    }
  }
}

// Float leaves of different sizes, a dtype without GPU kernels, and an empty leaf.
std::vector<std::pair<DType, int64_t>> Leaves() {
  return {{DType::kFloat32, 3001}, {DType::kBFloat16, 4099}, {DType::kFloat32, 0}, {DType::kFloat32, 5}};
}

OpSpec Spec(Collective collective, int ranks, const std::string& codec) {
  OpSpec spec = SpecOf(collective, 1, Info(collective).rooted ? ranks - 1 : -1);
  spec.codec = codec;
  for (int i = 0; i < ranks; ++i) spec.counts.push_back(i + 1);
  switch (collective) {
    case Collective::kAllgatherv:
    case Collective::kGatherv:
    case Collective::kScatterv:
    case Collective::kReduceScatterv: break;
    case Collective::kAlltoallv:
      spec.counts.clear();
      for (int i = 0; i < ranks * ranks; ++i) spec.counts.push_back(i % 3);
      break;
    default: spec.counts.clear();
  }
  if (collective == Collective::kPermute) {
    for (int i = 0; i + 1 < ranks; ++i) spec.pairs.insert(spec.pairs.end(), {i, i + 1});   // rank 0 receives no values
  }
  return spec;
}

constexpr Collective kAll[] = {
    Collective::kBcast,      Collective::kAllreduce, Collective::kReduce,         Collective::kAllgather,
    Collective::kGather,     Collective::kScatter,   Collective::kReduceScatter,  Collective::kAlltoall,
    Collective::kAllgatherv, Collective::kGatherv,   Collective::kScatterv,       Collective::kReduceScatterv,
    Collective::kAlltoallv,  Collective::kScan,      Collective::kExscan,         Collective::kBarrier,
    Collective::kPermute,
};
constexpr Collective kMoves[] = {Collective::kBcast,   Collective::kAllgather, Collective::kGather,
                                 Collective::kScatter, Collective::kAlltoall,  Collective::kPermute};

TEST(stage_returns_the_results_of_the_host) {
  for (Style style : kStyles) {
    for (Collective collective : kAll) {
      for (int ranks : {1, 3}) {
        for (int64_t part_bytes : {int64_t{4096}, int64_t{1} << 20}) {
          Compare(style, {Spec(collective, ranks, "raw"), ranks, Leaves()}, part_bytes);
        }
      }
    }
  }
}

TEST(stage_supports_variable_rate_codecs) {
  for (Style style : kStyles) {
    for (Collective collective : kMoves) {
      for (int ranks : {1, 2, 4}) {
        for (int64_t part_bytes : {int64_t{4096}, int64_t{1} << 20}) {
          Compare(style, {Spec(collective, ranks, "lossless"), ranks, Leaves()}, part_bytes);
        }
      }
    }
  }
  // Enough ranks for another default algorithm.
  for (Collective collective : kMoves) {
    Compare(Style::kProcesses, {Spec(collective, 11, "lossless"), 11, Leaves()}, 4096);
  }
}

TEST(stage_supports_in_place_results) {
  for (Collective collective : {Collective::kBcast, Collective::kAllreduce, Collective::kScan, Collective::kBarrier}) {
    Compare(Style::kProcesses, {Spec(collective, 3, "raw"), 3, Leaves()}, 4096, /*in_place=*/true);
  }
  Compare(Style::kProcesses, {Spec(Collective::kBcast, 3, "lossless"), 3, Leaves()}, 4096, /*in_place=*/true);
}

TEST(stage_supports_sendrecv) {
  for (const char* codec : {"raw", "lossless"}) {
    OpSpec spec = Spec(Collective::kSendrecv, 3, codec);
    spec.ordered = true;
    spec.recv_shapes = spec.shapes;
    Compare(Style::kProcesses, {spec, 3, Leaves()}, 4096);
  }
}

TEST(stage_sends_the_encoded_size_and_not_the_maximum) {
  constexpr int64_t kCount = 1 << 18;
  GpuTeam on(Style::kProcesses, 2, 256 << 10);
  CHECK_OK(on.Compile(Spec(Collective::kBcast, 2, "lossless")));
  std::vector<RankArrays> arrays(2);
  for (RankArrays& each : arrays) {
    each.inputs.emplace_back(DType::kFloat32, 1, kCount);
    FillWithNumbers(&each.inputs[0], 1);
    each.outputs.emplace_back(DType::kFloat32, 1, kCount);
  }
  for (const Status& status : on.RunAll(&arrays)) CHECK_OK(status);
  CHECK(arrays[0].outputs == arrays[1].inputs);
  const Stats stats = on.team.EngineOf(1).measurements().GetStats();
  const CollectiveStats& bcast = stats[static_cast<size_t>(Collective::kBcast)];
  CHECK_EQ(bcast.calls, 4);   // parts
  // Exactly the kernels' output and two lengths for each part.
  CHECK_EQ(bcast.sent_bytes, on.gpus[1]->encoded_bytes + 4 * 2 * 8);
  CHECK_EQ(on.gpus[0]->encoded_bytes, 0);   // only the root's operand is read
  CHECK_EQ(on.gpus[0]->copied_bytes, 0);
}

TEST(stage_splits_operands_equally_on_all_ranks) {
  OpSpec spec = Spec(Collective::kAllgather, 2, "raw");
  Array in(DType::kFloat32, 1, 10000), out(DType::kFloat32, 2, 10000), small(DType::kFloat32, 1, 7),
      small_out(DType::kFloat32, 2, 7);
  Call call = CallOf({&in, &small}, {&out, &small_out}, 1);
  const std::vector<StagePart> parts = CutIntoParts(spec, call, 10000);   // rounded up to 12288
  CHECK_EQ(parts.size(), 4u);
  int64_t covered = 0;
  for (const StagePart& part : parts) {
    for (size_t i = 0; i < part.inputs.size(); ++i) {
      const Slice &from = part.inputs[i], &to = part.outputs[i];
      CHECK_EQ(from.blocks, 1);
      CHECK_EQ(to.blocks, 2);
      CHECK(from.bytes == to.bytes && from.offset == to.offset && from.tensor == to.tensor);
      if (from.tensor == 0) {
        CHECK_EQ(from.offset, covered);
        covered += from.bytes;
      }
    }
  }
  CHECK_EQ(covered, 40000);
  // A huge operand has larger parts, not more.
  Tensor huge{nullptr, DType::kFloat32, 1, int64_t{1} << 40};
  call.inputs = {huge};
  huge.rows = 2;
  huge.bytes *= 2;
  call.outputs = {huge};
  CHECK(CutIntoParts(spec, call, 4096).size() <= 257);
  // Messages are not cut: a receive takes one.
  spec.collective = Collective::kRecv;
  call.inputs.clear();
  CHECK_EQ(CutIntoParts(spec, call, 4096).size(), 1u);
}

TEST(stage_refuses_unsupported_operations) {
  const auto refused = [](OpSpec spec) { return MakeStageSite(std::move(spec)).status(); };
  OpSpec spec = Spec(Collective::kAllreduce, 2, "lossless");
  CHECK_EQ(refused(spec).code(), Code::kUnimplemented);
  CHECK(Contains(refused(spec), "only what moves values"));
  spec = Spec(Collective::kBcast, 2, "lossless");
  spec.algorithm = "scatter_allgather";
  CHECK(Contains(refused(spec), "algorithm="));
  spec.algorithm = "auto";
  spec.has_ref = true;
  CHECK(Contains(refused(spec), "references"));
  spec = Spec(Collective::kBcast, 2, "raw");
  spec.mpi = true;
  CHECK(Contains(refused(spec), "MPI's own"));
  spec.mpi = false;
  spec.codec = "int9";
  CHECK_EQ(refused(spec).code(), Code::kInvalidArgument);
  // Without kernels the call fails on each rank, and the error names the missing part.
  for (const char* codec : {"int8", "zstd"}) {
    GpuTeam on(Style::kProcesses, 2);
    CHECK_OK(on.Compile(Spec(Collective::kBcast, 2, codec)));
    std::vector<RankArrays> arrays(2);
    for (RankArrays& each : arrays) {
      each.inputs.emplace_back(DType::kFloat32, 1, 10);
      each.outputs.emplace_back(DType::kFloat32, 1, 10);
    }
    for (const Status& status : on.RunAll(&arrays)) CHECK(Contains(status, "has no kernels of this codec for float32"));
  }
}

// A failure on one rank is reported on all ranks, and all memory is released.
TEST(stage_reports_a_fault_on_all_ranks) {
  using Fault = std::atomic<int> Faults::*;
  for (Style style : kStyles) {
    for (Fault fault : {&Faults::copy, &Faults::encode, &Faults::decode, &Faults::pinned, &Faults::code}) {
      for (int when : {1, 3}) {
        const bool encoded = fault == &Faults::encode || fault == &Faults::decode || fault == &Faults::code;
        GpuTeam on(style, 3, 4096);
        CHECK_OK(on.Compile(Spec(Collective::kAllgather, 3, encoded ? "lossless" : "raw")));
        (on.gpus[1]->faults.*fault) = when;
        Exercise e{on.SiteOf(0).site->spec, 3, {{DType::kFloat32, 9000}}};
        std::vector<RankArrays> arrays;
        for (int rank = 0; rank < 3; ++rank) arrays.push_back(ArraysOf(e, rank));
        const std::vector<Status> all = on.RunAll(&arrays);
        int failed = 0;
        for (const Status& status : all) {
          failed += !status.ok();
          if (!status.ok()) CHECK(Contains(status, "allgather"));
        }
        // Decoding detects an invalid code, on all ranks except the rank that keeps its own values.
        CHECK(failed >= 2);
        if (fault != &Faults::code) CHECK(!all[1].ok());
      }
    }
  }
}

TEST(stage_ends_at_the_deadline_if_a_rank_is_missing) {
  GpuTeam on(Style::kProcesses, 2);
  on.team.SetOption("timeout_seconds", "0.3");
  CHECK_OK(on.Compile(Spec(Collective::kBcast, 2, "lossless")));
  Exercise e{Spec(Collective::kBcast, 2, "lossless"), 2, {{DType::kFloat32, 9000}}};
  RankArrays arrays = ArraysOf(e, 0);
  const Status status = on.Run(0, &arrays, on.team.NextRunId());
  CHECK_EQ(status.code(), Code::kDeadlineExceeded);
  CHECK(Contains(status, "rank 1 of 'world'"));
}

TEST(stage_reports_a_mix_of_gpu_and_host_calls) {
  GpuTeam on(Style::kProcesses, 2);
  on.team.SetOption("timeout_seconds", "20");
  CHECK_OK(on.Compile(Spec(Collective::kBcast, 2, "raw")));
  auto host = on.team.Compile({Spec(Collective::kBcast, 2, "raw")});
  Exercise e{Spec(Collective::kBcast, 2, "raw"), 2, {{DType::kFloat32, 10}}};
  RankArrays first = ArraysOf(e, 0), second = ArraysOf(e, 1);
  Status on_gpu, on_host;
  on.team.OnRanks([&](int rank) {
    if (rank == 0) on_gpu = on.Run(0, &first, 1);
    else on_host = on.team.Run(1, host.At(1, 0), CallOn(&second, 1));
  });
  CHECK(Contains(on_gpu, "mismatch") && Contains(on_gpu, "on GPUs"));
  CHECK(Contains(on_host, "mismatch"));
}

TEST(packed_codec_refuses_invalid_lengths) {
  const std::shared_ptr<const Codec> packed = MakePackedCodec(FindCodec("lossless"));
  CHECK_EQ(PackedBytes(FindCodec("lossless"), DType::kFloat32, -1), -1);
  Workspace workspace;
  const CodingContext context(workspace);
  std::vector<std::byte> buffer(64), code(64), back(64);
  for (const int64_t length : {int64_t{-1}, int64_t{57}, int64_t{1} << 62}) {
    std::memcpy(buffer.data(), &length, sizeof(length));
    CHECK_EQ(packed->Encode(kPackedDType, buffer.data(), 64, code, context).status().code(), Code::kInternal);
    CHECK_EQ(packed->Decode(kPackedDType, {buffer.data(), 20}, back.data(), 64, context).code(), Code::kDataLoss);
  }
  const int64_t length = 12;
  std::memcpy(buffer.data(), &length, sizeof(length));
  const Result<int64_t> bytes = packed->Encode(kPackedDType, buffer.data(), 64, code, context);
  if (CHECK_OK(bytes)) CHECK_EQ(*bytes, 20);
  CHECK_OK(packed->Decode(kPackedDType, {code.data(), 20}, back.data(), 64, context));
  CHECK(std::memcmp(back.data(), buffer.data(), 20) == 0);
  for (size_t wrong : {0, 7, 8, 19, 21}) {
    CHECK_EQ(packed->Decode(kPackedDType, {code.data(), wrong}, back.data(), 64, context).code(), Code::kDataLoss);
  }
}

}  // namespace
}  // namespace jaxccomp
