#include "codec/measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

namespace jaxccomp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxCachedChunks = 16;

double SecondsSince(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

double Median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size()) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Keeps the compiler from removing an unused copy.
void Keep(const void* p) { asm volatile("" ::"r"(p) : "memory"); }

struct MeasuredChunk {
  const std::byte* src;
  const std::byte* ref;
  int64_t first;
  int64_t count;
  std::byte* code;
  int64_t code_bytes;
  std::byte* dst;
};

class Bench {
 public:
  Bench(const Codec& codec, const MeasurePlan& plan) : codec_(codec), plan_(plan) {
    const int64_t size = SizeBytes(plan.dtype);
    const int64_t slot = codec.MaxEncodedBytes(plan.dtype, plan.chunk_values);
    const int64_t chunks = (plan.count + plan.chunk_values - 1) / plan.chunk_values;
    code_.resize(static_cast<size_t>(chunks * slot));
    dst_.resize(static_cast<size_t>(plan.count * size));
    for (int64_t i = 0; i < chunks; ++i) {
      const int64_t first = i * plan.chunk_values;
      chunks_.push_back({static_cast<const std::byte*>(plan.values) + first * size,
                         plan.ref == nullptr
                             ? nullptr
                             : static_cast<const std::byte*>(plan.ref) + first * size,
                         first, std::min(plan.chunk_values, plan.count - first),
                         code_.data() + i * slot, slot, dst_.data() + first * size});
    }
  }

  Result<Measurement> Run() {
    Measurement result;
    merges_ = CheckReducible(plan_.dtype, ReduceOp::kSum, false).ok();
    for (MeasuredChunk& chunk : chunks_) {   // first get all sizes and touch all memory
      Status status = Encode(chunk);
      if (status.ok()) status = Decode(chunk);
      if (!status.ok()) return status;
      result.value_bytes += Bytes(chunk);
      result.encoded_bytes += chunk.code_bytes;
    }
    if (plan_.cached) {
      // Chunks spread over the values.
      const auto chosen = std::min<size_t>(chunks_.size(), kMaxCachedChunks);
      double seconds[4] = {};
      int64_t bytes = 0;
      for (size_t i = 0; i < chosen; ++i) {
        MeasuredChunk& chunk = chunks_[i * chunks_.size() / chosen];
        AddRounds({&chunk, 1}, plan_.seconds / static_cast<double>(chosen), seconds);
        bytes += Bytes(chunk);
      }
      SetRates(result, bytes, seconds);
    } else {
      double seconds[4] = {};
      AddRounds(chunks_, plan_.seconds, seconds);
      SetRates(result, result.value_bytes, seconds);
    }
    if (!status_.ok()) return status_;
    return result;
  }

 private:
  int64_t Bytes(const MeasuredChunk& c) const { return c.count * SizeBytes(plan_.dtype); }

  CodingContext ContextOf(const MeasuredChunk& c) {
    CodingContext context(workspace_);
    context.ref = c.ref;
    context.first = c.first;
    return context;
  }

  Status Encode(MeasuredChunk& c) {
    const auto slot = static_cast<size_t>(codec_.MaxEncodedBytes(plan_.dtype, c.count));
    auto bytes = codec_.Encode(plan_.dtype, c.src, c.count, {c.code, slot}, ContextOf(c));
    if (bytes.ok()) c.code_bytes = *bytes;
    return bytes.status();
  }

  Status Decode(const MeasuredChunk& c) {
    return codec_.Decode(plan_.dtype, {c.code, static_cast<size_t>(c.code_bytes)}, c.dst, c.count,
                         ContextOf(c));
  }

  Status Merge(const MeasuredChunk& c) {
    return codec_.DecodeMerge(plan_.dtype, {c.code, static_cast<size_t>(c.code_bytes)},
                              ReduceOp::kSum, plan_.dtype, c.dst, c.count, ContextOf(c));
  }

  Status Step(int what, MeasuredChunk& c) {
    switch (what) {
      case 0: return Encode(c);
      case 1: return Decode(c);
      case 2: return merges_ ? Merge(c) : Status::Ok();
      default:
        std::memcpy(c.dst, c.src, static_cast<size_t>(Bytes(c)));
        Keep(c.dst);
        return Status::Ok();
    }
  }

  // Times the four steps over the chunks, round by round, and adds the medians to `seconds`.
  void AddRounds(std::span<MeasuredChunk> chunks, double max_seconds, double seconds[4]) {
    std::vector<double> times[4];
    // Repeat a small working set up to about 1 MiB between two readings of the clock.
    int64_t bytes = 0;
    for (const MeasuredChunk& c : chunks) bytes += Bytes(c);
    const int64_t turns = std::max<int64_t>(1, (1 << 20) / std::max<int64_t>(bytes, 1));
    const auto begun = Clock::now();
    do {
      for (int what = 0; what < 4; ++what) {
        if (plan_.cached) Note(Step(what, chunks[0]));   // loads its memory into the cache
        const auto start = Clock::now();
        for (int64_t turn = 0; turn < turns; ++turn) {
          for (MeasuredChunk& c : chunks) Note(Step(what, c));
        }
        times[what].push_back(SecondsSince(start) / static_cast<double>(turns));
      }
    } while (SecondsSince(begun) < max_seconds && status_.ok());
    for (int what = 0; what < 4; ++what) seconds[what] += Median(times[what]);
  }

  void Note(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  void SetRates(Measurement& result, int64_t bytes, const double seconds[4]) const {
    const auto rate = [&](double s) { return s > 0 ? static_cast<double>(bytes) / s : 0; };
    result.encode_rate = rate(seconds[0]);
    result.decode_rate = rate(seconds[1]);
    result.merge_rate = merges_ ? rate(seconds[2]) : 0;
    result.copy_rate = rate(seconds[3]);
  }

  const Codec& codec_;
  const MeasurePlan& plan_;
  Workspace workspace_;
  std::vector<std::byte> code_, dst_;
  std::vector<MeasuredChunk> chunks_;
  bool merges_ = false;
  Status status_;
};

}  // namespace

Result<Measurement> Measure(const Codec& codec, const MeasurePlan& plan) {
  if (plan.count < 1 || plan.chunk_values < 1 || plan.seconds <= 0) {
    return Status(Code::kInvalidArgument, "there is nothing to measure");
  }
  if (codec.MaxEncodedBytes(plan.dtype, plan.chunk_values) < 0 || !codec.Supports(plan.dtype)) {
    return Status(Code::kUnimplemented, "codec '" + codec.traits().spec + "' does not code " +
                                            std::string(Name(plan.dtype)));
  }
  return Bench(codec, plan).Run();
}

}  // namespace jaxccomp
