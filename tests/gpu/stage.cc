#include "stage.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "cuda/cuda_interface.h"
#include "cuda/stage/stage.h"
#include "device.h"
#include "engine/engine.h"
#include "engine/membership.h"
#include "lossless.h"
#include "lossy_codecs.h"

namespace jaxccomp {
namespace {

using namespace testing;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 2;
constexpr int64_t kFirstNumber = 1000;   // the engine's number for rank 0's device

Gpu& OwnGpu() {
  std::string reason;
  Gpu* const gpu = jaxccomp_cuda_gpu(0, &reason);
  if (gpu != nullptr) return *gpu;
  std::fprintf(stderr, "the stage has no GPU: %s\n", reason.c_str());
  std::exit(1);
}

double Seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

// Pinned host memory.
class Pinned {
 public:
  explicit Pinned(int64_t bytes) : bytes_(bytes), memory_(OwnGpu().AllocatePinned(bytes)) {
    if (memory_ == nullptr) std::abort();
    std::memset(memory_, 0xa5, static_cast<size_t>(bytes));
  }
  ~Pinned() { OwnGpu().FreePinned(memory_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  std::byte* data() const { return memory_; }
  std::span<std::byte> all() const { return {memory_, static_cast<size_t>(bytes_)}; }

 private:
  const int64_t bytes_;
  std::byte* const memory_;
};

// An array on the GPU and its encoding in pinned memory.
class StagedCode {
 public:
  StagedCode(const Codec& codec, DType dtype, int64_t count, cudaStream_t stream)
      : codec_(codec), dtype_(dtype), count_(count), stream_(stream),
        values_(static_cast<size_t>(count * SizeBytes(dtype))), code_(codec.MaxEncodedBytes(dtype, count)), words_(64) {
    CHECK_OK(OwnGpu().Prepare(codec, dtype));
  }
  const DeviceBytes& values() const { return values_; }
  int64_t& size() const { return *reinterpret_cast<int64_t*>(words_.data()); }
  int32_t& verdict() const { return *reinterpret_cast<int32_t*>(words_.data() + 8); }
  Bytes Code() const { return Bytes(code_.data(), code_.data() + size()); }

  void Encode() const {
    const Gpu::EncodeRun run = {&codec_, dtype_, values_.data(), count_, code_.all(), &size()};
    CHECK_OK(OwnGpu().Encode({&run, 1}, stream_));
    Cuda(cudaStreamSynchronize(stream_), "encoding into pinned memory");
  }
  void Decode() const {
    const Gpu::DecodeRun run = {&codec_, dtype_, {code_.data(), static_cast<size_t>(size())}, values_.data(), count_,
                                &verdict()};
    CHECK_OK(OwnGpu().Decode({&run, 1}, stream_));
    Cuda(cudaStreamSynchronize(stream_), "decoding from pinned memory");
  }

 private:
  const Codec& codec_;
  const DType dtype_;
  const int64_t count_;
  const cudaStream_t stream_;
  const DeviceBytes values_;
  const Pinned code_, words_;
};

// Copies bytes to the GPU and back on a stream, zeroes some of them in between, and waits with an event.
bool CompareCopies(cudaStream_t stream) {
  constexpr int64_t kBytes = (5 << 20) + 13, kCut = 1001;
  Gpu& gpu = OwnGpu();
  const DeviceBytes on_gpu(kBytes);
  const Pinned to(kBytes), from(kBytes);
  Bytes values = Weights(DType::kFloat32, kBytes / 4 + 1);
  values.resize(kBytes);
  const auto event = gpu.MakeEvent();
  if (!CHECK_OK(event)) return false;
  bool equal = true;
  for (int64_t clear : {int64_t{0}, 3 * kCut}) {
    std::memcpy(to.data(), values.data(), values.size());
    const Gpu::CopyRun in[] = {{on_gpu.data(), to.data(), kCut},
                               {on_gpu.data() + kCut, to.data() + kCut, kBytes - kCut}};
    const Gpu::CopyRun out = {from.data(), on_gpu.data(), kBytes};
    CHECK_OK(gpu.Copy(in, stream));
    CHECK_OK(gpu.Zero(on_gpu.data() + kCut, clear, stream));
    CHECK_OK(gpu.Copy({&out, 1}, stream));
    CHECK_OK((*event)->Record(stream));
    CHECK_OK((*event)->Wait());
    Bytes expected = values;
    std::fill_n(expected.begin() + kCut, clear, std::byte{0});
    equal &= std::memcmp(from.data(), expected.data(), expected.size()) == 0;
  }
  std::printf("{\"stage\": \"copies\", \"equal\": %s}\n", equal ? "true" : "false");
  return equal;
}

// Two ranks, each with a stage and a stream on the same GPU.
class Ranks {
 public:
  explicit Ranks(int64_t part_bytes) : engine_(0, 1) {
    engine_.membership().SetDevices({{kFirstNumber, 0}, {kFirstNumber + 1, 0}});
    CHECK_OK(engine_.SetOption("device_part_bytes", std::to_string(part_bytes)));
    for (int rank = 0; rank < kRanks; ++rank) {
      stages_.push_back(std::make_unique<Stage>(&OwnGpu()));
      Cuda(cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking), "cudaStreamCreate");
    }
  }

  // Runs an operation on all ranks; returns seconds until all are done.
  double Run(Collective collective, const std::string& codec, std::vector<Call> calls) {
    OpSpec spec;
    spec.collective = collective;
    spec.codec = codec;
    spec.root = Info(collective).rooted ? 0 : -1;
    spec.groups = {kFirstNumber, kFirstNumber + 1};
    spec.group_size = kRanks;
    spec.shapes = "float32[" + std::to_string(calls[0].inputs[0].bytes / 4) + "]";
    auto& site = sites_[std::string(Info(collective).name) + codec + spec.shapes];
    if (site == nullptr) {
      auto made = MakeStageSite(spec);
      if (!CHECK_OK(made)) return 0;
      site = std::move(*made);
      CloseProgram("");
    }
    ++run_id_;
    const auto begun = Clock::now();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      calls[rank].run_id = run_id_;
      calls[rank].device = kFirstNumber + rank;
      threads.emplace_back([&, rank] { CHECK_OK(stages_[rank]->Run(engine_, *site, calls[rank], streams_[rank])); });
    }
    for (std::thread& thread : threads) thread.join();
    return Seconds(begun);
  }

 private:
  Engine engine_;
  std::vector<std::unique_ptr<Stage>> stages_;
  cudaStream_t streams_[kRanks] = {};
  std::map<std::string, std::unique_ptr<StageSite>> sites_;
  int64_t run_id_ = 0;
};

Tensor On(const DeviceBytes& bytes, int64_t rows, int64_t size) { return {bytes.data(), DType::kFloat32, rows, size}; }

bool CompareOperation(Ranks* ranks, Collective collective, const std::string& codec, int64_t part_bytes) {
  // More parts than are in flight at a time; the last one is not full.
  const int64_t count = 11 * part_bytes / 8 + 1, row = 4 * count;
  const int64_t in_rows = Info(collective).input == Blocks::kPerRank ? kRanks : 1;
  const int64_t out_rows = Info(collective).output == Blocks::kPerRank ? kRanks : 1;
  std::vector<Bytes> operands;
  std::vector<std::unique_ptr<DeviceBytes>> in, out;
  std::vector<Call> calls(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    operands.push_back(Weights(DType::kFloat32, in_rows * count));
    operands.back()[5] = static_cast<std::byte>(rank);
    in.push_back(std::make_unique<DeviceBytes>(operands.back(), 0));
    out.push_back(std::make_unique<DeviceBytes>(static_cast<size_t>(out_rows * row)));
    calls[rank].inputs = {On(*in.back(), in_rows, in_rows * row)};
    calls[rank].outputs = {On(*out.back(), out_rows, out_rows * row)};
  }
  ranks->Run(collective, codec, calls);
  bool equal = true;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Bytes got = out[rank]->Take();
    for (int64_t block = 0; block < out_rows; ++block) {
      const int from = collective == Collective::kBcast ? 0 : static_cast<int>(block);
      const int64_t at = collective == Collective::kAlltoall ? rank * row : 0;
      equal &= std::memcmp(got.data() + block * row, operands[from].data() + at, static_cast<size_t>(row)) == 0;
    }
  }
  std::printf("{\"stage\": \"%s\", \"codec\": \"%s\", \"part_bytes\": %lld, \"equal\": %s}\n",
              std::string(Info(collective).name).c_str(), codec.c_str(), static_cast<long long>(part_bytes),
              equal ? "true" : "false");
  return equal;
}

}  // namespace

bool CompareStagedCodes(const std::string& spec, cudaStream_t stream) {
  const Codec& codec = FindCodec(spec);
  int compared = 0, differ = 0;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (int64_t count : {1, 1000, 100003, 1 << 20}) {
      const Bytes values = Weights(dtype, count);
      const StagedCode trip(codec, dtype, count, stream);
      trip.values().Put(values);
      trip.Encode();
      bool equal = true;
      if (codec.traits().runs_on_host) {
        Workspace workspace;
        Bytes expected(static_cast<size_t>(codec.MaxEncodedBytes(dtype, count)));
        const auto bytes = codec.Encode(dtype, values.data(), count, expected, CodingContext(workspace));
        if (CHECK_OK(bytes)) expected.resize(static_cast<size_t>(*bytes));
        equal = trip.Code() == expected;
      }
      trip.values().Put(Bytes(values.size()));
      trip.Decode();
      equal &= trip.verdict() == 0 && trip.values().Take() == values;
      ++compared;
      differ += !equal;
    }
  }
  std::printf("{\"stage\": \"%s\", \"compared\": %d, \"differ\": %d}\n", spec.c_str(), compared, differ);
  return differ == 0;
}

bool CompareStage(cudaStream_t stream) {
  bool equal = CompareCopies(stream);
  equal &= CompareStagedCodes("lossless", stream);
  for (const int64_t part_bytes : {64 << 10, 4 << 20}) {
    Ranks ranks(part_bytes);
    for (const Collective collective : {Collective::kBcast, Collective::kAllgather, Collective::kAlltoall}) {
      for (const char* codec : {"raw", "lossless"}) equal &= CompareOperation(&ranks, collective, codec, part_bytes);
    }
  }
  return equal;
}

void MeasureStage(cudaStream_t stream) {
  constexpr int kRepeats = 7;
  const auto median = [](auto&& seconds_of) {
    std::vector<double> all;
    for (int i = 0; i < kRepeats; ++i) all.push_back(seconds_of());
    std::nth_element(all.begin(), all.begin() + kRepeats / 2, all.end());
    return all[kRepeats / 2];
  };
  const auto timed = [](auto&& work) {
    const auto begun = Clock::now();
    work();
    return Seconds(begun);
  };
  const Codec& codec = FindCodec("lossless");
  for (const int64_t mebibytes : {1, 4, 16, 64, 256}) {
    const int64_t bytes = mebibytes << 20;
    const Bytes some = Weights(DType::kFloat32, kDistinctBytes / 4);
    const StagedCode trip(codec, DType::kFloat32, bytes / 4, stream);
    PutWeights(some, bytes, trip.values().data());
    const Pinned pinned(bytes);
    const double copy = median([&] {
      return timed([&] {
        const Gpu::CopyRun run = {pinned.data(), trip.values().data(), bytes};
        CHECK_OK(OwnGpu().Copy({&run, 1}, stream));
        Cuda(cudaStreamSynchronize(stream), "a copy");
      });
    });
    const double encode = median([&] { return timed([&] { trip.Encode(); }); });
    const double decode = median([&] { return timed([&] { trip.Decode(); }); });
    Ranks ranks(4 << 20);
    const DeviceBytes out(static_cast<size_t>(bytes)), other(static_cast<size_t>(bytes));
    std::vector<Call> calls(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      calls[rank].inputs = {On(trip.values(), 1, bytes)};
      calls[rank].outputs = {On(rank == 0 ? out : other, 1, bytes)};
    }
    double operations[2];
    for (const bool coded : {false, true}) {
      operations[coded] = median([&] { return ranks.Run(Collective::kBcast, coded ? "lossless" : "raw", calls); });
    }
    const auto gbps = [&](double seconds) { return static_cast<double>(bytes) / seconds * 1e-9; };
    std::printf("{\"stage\": \"rates\", \"bytes\": %lld, \"copy_gbps\": %.2f, \"encode_gbps\": %.2f, "
                "\"decode_gbps\": %.2f, \"bcast_raw_gbps\": %.2f, \"bcast_lossless_gbps\": %.2f}\n",
                static_cast<long long>(bytes), gbps(copy), gbps(encode), gbps(decode), gbps(operations[0]),
                gbps(operations[1]));
  }
}

}  // namespace jaxccomp
