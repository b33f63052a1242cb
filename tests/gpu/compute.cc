#include "compute.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "check.h"
#include "codec/difference.h"
#include "codec/merge.h"
#include "common/crc32c.h"
#include "compute_cases.h"
#include "cuda/kernels/compute/compute.h"
#include "device.h"
#include "reduce/residual.h"

namespace jaxccomp {
namespace {

using namespace testing;

class Tally {
 public:
  explicit Tally(const char* what) : what_(what) {}
  void Note(bool equal, const std::string& example) {
    ++compared_;
    if (equal) return;
    ++differ_;
    if (example_.empty()) example_ = example;
  }
  bool Report() const {
    std::printf("{\"compute\": \"%s\", \"compared\": %d, \"differ\": %d, \"example\": \"%s\"}\n",
                what_, compared_, differ_, example_.c_str());
    return differ_ == 0;
  }

 private:
  const char* what_;
  int compared_ = 0, differ_ = 0;
  std::string example_;
};

std::string Describe(DType dtype, int64_t count, size_t behind) {
  return std::string(Name(dtype)) + " count " + std::to_string(count) + " behind " +
         std::to_string(behind);
}

struct ReduceCase {
  int64_t count;
  size_t sources;
  int64_t divisor;
  size_t behind;     // values that sources lie behind an aligned address, one more each; 0: none
  bool into_last;    // dst is the last source
};

bool SameReduction(DType dtype, ReduceOp op, const ReduceCase& c, cudaStream_t stream) {
  const auto size = static_cast<size_t>(SizeBytes(dtype));
  std::vector<Bytes> values;
  std::deque<DeviceBytes> there;
  std::vector<const void*> ours, theirs;
  values.reserve(c.sources);
  for (size_t s = 0; s < c.sources; ++s) {
    values.push_back(ComputeValues(dtype, c.count, s + 10 * c.sources));
    there.emplace_back(values[s], c.behind == 0 ? 0 : (c.behind + s) * size % 16);
    theirs.push_back(values[s].data());
    ours.push_back(there[s].data());
  }
  Bytes expected(static_cast<size_t>(c.count) * size);
  Reduce(dtype, op, expected.data(), theirs, c.count, c.divisor);
  const DeviceBytes own(expected.size()), partial(static_cast<size_t>(c.count) * 16);
  const DeviceBytes& to = c.into_last ? there.back() : own;
  const bool many = c.sources > static_cast<size_t>(cuda::MaxReduceSources());
  CHECK_OK(cuda::Reduce(dtype, op, to.data(), ours, c.count, c.divisor,
                        many ? reinterpret_cast<float*>(partial.data()) : nullptr, stream));
  return FirstOther(dtype, expected, to.Take(), TwoNaNsMeet(dtype, op, theirs, c.count)) < 0;
}

bool CompareReduce(cudaStream_t stream) {
  Tally tally("reduce");
  const auto many = static_cast<size_t>(cuda::MaxReduceSources()) + 3;
  const ReduceCase cases[] = {{1, 2, 1, 0, false},      {100003, 2, 1, 0, false},
                              {100003, 8, 3, 0, false}, {9001, 3, 1, 1, false},
                              {9001, 1, 3, 0, true},    {9001, 5, 7, 1, true},
                              {777, many, 3, 0, true}};
  ForEachReduction([&](DType dtype, ReduceOp op) {
    for (const ReduceCase& c : cases) {
      tally.Note(SameReduction(dtype, op, c, stream),
                 std::string(Name(op)) + " of " + std::to_string(c.sources) + " " +
                     Describe(dtype, c.count, c.behind));
    }
  });
  return tally.Report();
}

// Conversions are compared on every half there is.
Bytes Halves(DType dtype, int64_t* count) {
  *count = 1 << 16;
  Bytes bytes(static_cast<size_t>(*count * SizeBytes(dtype)));
  for (uint32_t raw = 0; raw < 1 << 16; ++raw) {
    const auto half = static_cast<uint16_t>(raw);
    std::memcpy(&bytes[2 * raw], &half, sizeof(half));
  }
  return bytes;
}

bool CompareMerge(cudaStream_t stream) {
  Tally tally("merge_values");
  ForEachReduction([&](DType dtype, ReduceOp op) {
    for (DType acc_dtype : {dtype, DType::kFloat32}) {
      if (acc_dtype != dtype && !IsHalf(dtype)) continue;
      for (size_t behind : {0, 1}) {
        int64_t count = 30001;
        const Bytes values =
            IsHalf(dtype) ? Halves(dtype, &count) : ComputeValues(dtype, count, 3);
        const Bytes before = ComputeValues(acc_dtype, count, 4);
        Bytes expected = before;
        MergeValues(dtype, values.data(), op, acc_dtype, expected.data(), count);
        const DeviceBytes from(values, behind * static_cast<size_t>(SizeBytes(dtype)) % 16);
        const DeviceBytes acc(before, 0);
        CHECK_OK(cuda::MergeValues(dtype, from.data(), op, acc_dtype, acc.data(), count, stream));
        tally.Note(FirstOther(acc_dtype, expected, acc.Take(),
                              BothNaN(dtype, values, acc_dtype, before, count)) < 0,
                   std::string(Name(op)) + " " + Describe(dtype, count, behind));
      }
    }
  });
  return tally.Report();
}

bool CompareRound(cudaStream_t stream) {
  Tally tally("round_to_half");
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (int64_t count : {1, 1 << 20}) {
      const Bytes values = ComputeValues(DType::kFloat32, count, 5);
      Bytes expected(static_cast<size_t>(2 * count));
      RoundToHalf(dtype, reinterpret_cast<const float*>(values.data()), expected.data(), count);
      const DeviceBytes from(values, 0), to(expected.size());
      CHECK_OK(cuda::RoundToHalf(dtype, reinterpret_cast<const float*>(from.data()), 1, to.data(),
                                 count, stream));
      tally.Note(to.Take() == expected, Describe(dtype, count, 0));
    }
  }
  return tally.Report();
}

bool CompareLost(cudaStream_t stream) {
  Tally tally("add_lost");
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    for (int64_t count : {1, 100003}) {
      for (bool adds : {false, true}) {
        for (size_t behind : {0, 1}) {
          const Bytes before = ComputeValues(dtype, count, 1);
          const Bytes values = ComputeValues(dtype, count, 2);
          const Bytes decoded = ComputeValues(dtype, count, 3);
          Bytes expected(values.size());
          AddResidual(dtype, expected.data(), adds ? before.data() : nullptr, values.data(),
                  decoded.data(), count, 3);
          const DeviceBytes to(before, 0), x(values, behind * static_cast<size_t>(SizeBytes(dtype)));
          const DeviceBytes y(decoded, 0);
          CHECK_OK(cuda::AddResidual(dtype, to.data(), adds ? to.data() : nullptr, x.data(), y.data(),
                                 count, 3, stream));
          tally.Note(to.Take() == expected, Describe(dtype, count, behind));
        }
      }
    }
  }
  return tally.Report();
}

bool CompareDifferences(cudaStream_t stream) {
  Tally tally("differences");
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (bool exact : {false, true}) {
      if (!exact && (dtype == DType::kOpaque8 || dtype == DType::kBool)) continue;
      for (int64_t count : {1, 100003}) {
        const Bytes a = ComputeValues(dtype, count, 1), b = ComputeValues(dtype, count, 2);
        const std::vector<bool> any_nan = BothNaN(dtype, a, dtype, b, count);
        const DeviceBytes x(a, 0), y(b, 0), to(a.size());
        Bytes expected(a.size());
        Subtract(dtype, exact, a.data(), b.data(), expected.data(), count);
        CHECK_OK(cuda::Subtract(dtype, exact, x.data(), y.data(), to.data(), count, stream));
        tally.Note(FirstOther(dtype, expected, to.Take(), any_nan) < 0, Describe(dtype, count, 0));
        Add(dtype, exact, a.data(), b.data(), expected.data(), count);
        CHECK_OK(cuda::Add(dtype, exact, x.data(), y.data(), y.data(), count, stream));
        tally.Note(FirstOther(dtype, expected, y.Take(), any_nan) < 0, Describe(dtype, count, 0));
      }
    }
  }
  return tally.Report();
}

bool CompareFill(cudaStream_t stream) {
  Tally tally("fill");
  for (int64_t size : {1, 2, 4, 8, 16}) {
    for (size_t behind : {0, 1, 8}) {
      for (int64_t count : {1, 3, 100003}) {
        Bytes expected(static_cast<size_t>(count * size));
        const DeviceBytes to(expected.size(), behind);
        Device::FillRun run = {to.data(), count, size, {}};
        for (size_t i = 0; i < 16; ++i) run.element[i] = static_cast<std::byte>(7 * i + 1);
        for (size_t i = 0; i < expected.size(); ++i) {
          expected[i] = run.element[i % static_cast<size_t>(size)];
        }
        CHECK_OK(cuda::Fill(run, stream));
        tally.Note(to.Take() == expected, std::to_string(size) + " bytes");
      }
    }
  }
  return tally.Report();
}

bool CompareCopies(cudaStream_t stream) {
  Tally tally("copy_runs");
  std::vector<Bytes> bytes;
  std::deque<DeviceBytes> from, to;
  std::vector<Device::CopyRun> runs;
  for (size_t i = 0; i < 256; ++i) {
    const size_t size = i % 64 == 63 ? 300001 + i : i * 7 % 150;
    bytes.push_back(ComputeValues(DType::kUInt8, static_cast<int64_t>(size), i));
    from.emplace_back(bytes.back(), i / 16);
    to.emplace_back(size, i % 16);
    runs.push_back({to.back().data(), from.back().data(), static_cast<int64_t>(size)});
  }
  CHECK_OK(cuda::CopyRuns(runs, stream));
  for (size_t i = 0; i < runs.size(); ++i) {
    tally.Note(to[i].Take() == bytes[i], "run " + std::to_string(i));
  }
  return tally.Report();
}

bool CompareChecksums(cudaStream_t stream) {
  Tally tally("checksum");
  const int64_t most = 64 << 20;
  const Bytes bytes = ComputeValues(DType::kUInt8, most, 6);
  const DeviceBytes there(bytes, 0), to(4);
  const DeviceBytes workspace(static_cast<size_t>(cuda::ChecksumWorkspaceBytes(most)));
  for (int64_t size : {int64_t{0}, int64_t{1}, int64_t{9}, int64_t{4096}, int64_t{32768},
                       int64_t{1000003}, int64_t{5} << 20, most - 5}) {
    for (int64_t first : {0, 1, 5}) {
      CHECK_OK(cuda::Checksum(there.data() + first, size, reinterpret_cast<uint32_t*>(to.data()),
                              workspace.data(), stream));
      uint32_t found = 0;
      std::memcpy(&found, to.Take().data(), sizeof(found));
      const auto part = std::span(bytes).subspan(static_cast<size_t>(first),
                                                 static_cast<size_t>(size));
      tally.Note(found == Crc32c(part), std::to_string(first) + " + " + std::to_string(size));
    }
  }
  return tally.Report();
}

}  // namespace

bool CompareCompute(cudaStream_t stream) {
  bool equal = true;
  for (const auto compare : {CompareReduce, CompareMerge, CompareRound, CompareLost,
                             CompareDifferences, CompareFill, CompareCopies, CompareChecksums}) {
    equal &= compare(stream);
  }
  return equal;
}

void MeasureCompute(cudaStream_t stream, double copy_rate) {
  constexpr int64_t kBytes = int64_t{256} << 20;   // far more than caches hold
  constexpr size_t kSources = 8;
  std::deque<DeviceBytes> sources;
  std::vector<const void*> pointers;
  for (size_t s = 0; s < kSources; ++s) {
    sources.emplace_back(kBytes);
    // Numbers: NaN, which takes longer, is rare where speed counts.
    Cuda(cudaMemset(sources[s].data(), 0x3c + static_cast<int>(s), kBytes), "cudaMemset");
    pointers.push_back(sources[s].data());
  }
  const DeviceBytes to(kBytes + 16), checksum(4);
  const DeviceBytes workspace(static_cast<size_t>(cuda::ChecksumWorkspaceBytes(kBytes)));
  const auto time = [&](const std::string& operation, int64_t bytes, auto&& start) {
    const double rate =
        static_cast<double>(bytes) / MedianSeconds(stream, [&] { CHECK_OK(start()); });
    std::printf("{\"compute\": \"%s\", \"bytes\": %lld, \"gbps\": %.1f, \"of_copy\": %.3f}\n",
                operation.c_str(), static_cast<long long>(bytes), rate * 1e-9, rate / copy_rate);
  };
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const int64_t count = kBytes / SizeBytes(dtype);
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      for (size_t n : {size_t{2}, kSources}) {
        const auto some_sources = std::span<const void* const>(pointers).first(n);
        time("reduce " + std::string(Name(op)) + " " + std::string(Name(dtype)) + " of " +
                 std::to_string(n),
             static_cast<int64_t>(n + 1) * kBytes, [&] {
               return cuda::Reduce(dtype, op, to.data(), some_sources, count, 1, nullptr, stream);
             });
      }
    }
    // Arrays that are aligned to their values only, each in another way.
    const void* const apart[] = {sources[0].data() + SizeBytes(dtype), sources[1].data()};
    time("reduce sum " + std::string(Name(dtype)) + " of 2, not aligned", 3 * kBytes, [&] {
      return cuda::Reduce(dtype, ReduceOp::kSum, to.data(), apart, count - 1, 1, nullptr, stream);
    });
  }
  const auto floats = kBytes / 4;
  time("add_lost float32", 4 * kBytes, [&] {
    return cuda::AddResidual(DType::kFloat32, to.data(), sources[2].data(), sources[0].data(),
                         sources[1].data(), floats, 1, stream);
  });
  for (int64_t bytes : {int64_t{1} << 20, int64_t{16} << 20, kBytes}) {
    time("checksum", bytes, [&] {
      return cuda::Checksum(sources[0].data(), bytes, reinterpret_cast<uint32_t*>(checksum.data()),
                            workspace.data(), stream);
    });
  }
  const auto copy = [&](const std::string& what, int64_t run_bytes, int64_t behind) {
    std::vector<Device::CopyRun> runs;
    for (int64_t at = 0; at + run_bytes + 16 <= kBytes && runs.size() < 1024; at += run_bytes) {
      runs.push_back({to.data() + at, sources[0].data() + at + behind, run_bytes});
    }
    time("copy_runs " + what, 2 * static_cast<int64_t>(runs.size()) * run_bytes,
         [&] { return cuda::CopyRuns(runs, stream); });
  };
  copy("of 1, aligned", kBytes - 16, 0);
  copy("of 1, a byte apart", kBytes - 16, 1);
  copy("of 1024 of 64 KiB", 64 << 10, 0);
  copy("of 1024 of 1 KiB", 1 << 10, 0);
  const Device::FillRun fill = {to.data(), floats, 4, {std::byte{1}, std::byte{2}}};
  time("fill", kBytes, [&] { return cuda::Fill(fill, stream); });
}

}  // namespace jaxccomp
