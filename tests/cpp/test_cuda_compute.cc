// The kernels of csrc/cuda/kernels/compute/compute.h, run on the host: their bits are those of the
// functions of the same names for the processor.
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "check.h"
#include "codec/difference.h"
#include "codec/merge.h"
#include "compute_cases.h"
#include "cuda/kernels/compute/compute_dispatch.cuh"
#include "cuda_grid.h"
#include "placed.h"
#include "reduce/residual.h"

namespace jaxccomp {
namespace {

using namespace testing;

constexpr DType kHalves[] = {DType::kFloat16, DType::kBFloat16};

// How far arrays lie from addresses that are aligned for any access, in values.
enum class Layout { kAligned, kAllBehind, kApart };

size_t Offset(Layout layout, size_t array, int64_t value_bytes) {
  const auto size = static_cast<size_t>(value_bytes);
  if (layout == Layout::kAligned) return 0;
  if (layout == Layout::kAllBehind) return size % 16;
  return array * size % 16;
}

struct ReduceCase {
  DType dtype;
  ReduceOp op;
  int64_t count;
  size_t sources;
  int64_t divisor;
  Layout layout = Layout::kAligned;
  int dst_at = -1;   // which source the destination is
};

std::string Describe(const ReduceCase& c) {
  return std::string(Name(c.dtype)) + " " + std::string(Name(c.op)) + " count " +
         std::to_string(c.count) + " sources " + std::to_string(c.sources) + " divisor " +
         std::to_string(c.divisor) + " layout " + std::to_string(static_cast<int>(c.layout)) +
         " dst at " + std::to_string(c.dst_at);
}

void CompareReduce(const ReduceCase& c) {
  const int64_t size = SizeBytes(c.dtype);
  std::vector<Bytes> values;
  std::vector<Placed> placed;
  std::vector<const void*> ours, theirs;
  placed.reserve(c.sources);
  values.reserve(c.sources);
  for (size_t s = 0; s < c.sources; ++s) {
    values.push_back(ComputeValues(c.dtype, c.count, s * 77 + static_cast<uint64_t>(c.count)));
    placed.emplace_back(values[s], Offset(c.layout, s, size));
    theirs.push_back(values[s].data());
    ours.push_back(placed[s].data());
  }
  Placed own(Bytes(static_cast<size_t>(c.count * size)), Offset(c.layout, c.sources, size));
  Placed& to = c.dst_at < 0 ? own : placed[static_cast<size_t>(c.dst_at)];
  Bytes expected(static_cast<size_t>(c.count * size));
  const std::vector<bool> any_nan = TwoNaNsMeet(c.dtype, c.op, theirs, c.count);
  Reduce(c.dtype, c.op, expected.data(), theirs, c.count, c.divisor);

  std::vector<std::byte> partial(static_cast<size_t>(c.count) * 16);
  const bool many = c.sources > cuda::kMaxReduceSources;
  CHECK_OK(cuda::DispatchReduce(c.dtype, c.op, to.data(), ours, c.count, c.divisor,
                                many ? reinterpret_cast<float*>(partial.data()) : nullptr,
                                LaunchHere{}));
  const int64_t other = FirstOther(c.dtype, expected, to.Take(), any_nan);
  if (other >= 0) CHECK_EQ("other value at " + std::to_string(other), Describe(c));
  for (size_t s = 0; s < c.sources; ++s) {
    if (static_cast<int>(s) != c.dst_at) CHECK(placed[s].Take() == values[s]);
  }
}

TEST(cuda_reduce_gives_the_bits_of_reduce) {
  ForEachReduction([](DType dtype, ReduceOp op) {
    for (size_t sources : {1, 2, 3, 8}) {
      CompareReduce({dtype, op, 9001, sources, 1});
      CompareReduce({dtype, op, 1003, sources, 3});
    }
  });
}

TEST(cuda_reduce_of_any_count_at_any_address) {
  ForEachReduction([](DType dtype, ReduceOp op) {
    for (int64_t count : {0, 1, 2, 7, 15, 16, 17, 31, 33, 255, 4099}) {
      for (Layout layout : {Layout::kAligned, Layout::kAllBehind, Layout::kApart}) {
        CompareReduce({dtype, op, count, 2, 1, layout});
        CompareReduce({dtype, op, count, 3, 7, layout});
      }
    }
  });
}

TEST(cuda_reduce_into_one_of_the_sources) {
  ForEachReduction([](DType dtype, ReduceOp op) {
    for (int at : {0, 1, 2, 4}) {
      CompareReduce({dtype, op, 517, 5, 2, Layout::kAligned, at});
      CompareReduce({dtype, op, 517, 5, 1, Layout::kApart, at});
    }
    CompareReduce({dtype, op, 100, 1, 1, Layout::kAligned, 0});
    CompareReduce({dtype, op, 100, 1, 5, Layout::kAligned, 0});
  });
}

TEST(cuda_reduce_of_more_sources_than_a_kernel_takes) {
  constexpr int kMost = cuda::kMaxReduceSources;
  ForEachReduction([](DType dtype, ReduceOp op) {
    CompareReduce({dtype, op, 131, kMost, 3});
    for (int at : {-1, 0, kMost - 1, kMost, 2 * kMost + 1}) {
      CompareReduce({dtype, op, 37, 2 * kMost + 2, 3, Layout::kAligned, at});
    }
  });
}

TEST(cuda_reduce_refuses_what_reduce_does) {
  alignas(16) std::byte memory[64] = {};
  const void* const sources[] = {memory, memory};
  for (int d = 0; d < kDTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto dtype = static_cast<DType>(d);
      const auto op = static_cast<ReduceOp>(o);
      const Status status =
          cuda::DispatchReduce(dtype, op, memory, sources, 1, 1, nullptr, LaunchHere{});
      CHECK_EQ(status.ok(), CheckReducible(dtype, op, false).ok());
    }
  }
  const void* const apart[] = {memory + 1, memory};
  CHECK(!cuda::DispatchReduce(DType::kFloat32, ReduceOp::kSum, memory, apart, 1, 1, nullptr,
                              LaunchHere{})
             .ok());
  // Partial results have nowhere to go.
  const std::vector<const void*> many(cuda::kMaxReduceSources + 1, memory);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    CHECK(!cuda::DispatchReduce(dtype, ReduceOp::kSum, memory, many, 1, 1, nullptr, LaunchHere{})
               .ok());
  }
}

TEST(cuda_merge_values_gives_the_bits_of_merge_values) {
  ForEachReduction([](DType dtype, ReduceOp op) {
    for (DType acc_dtype : {dtype, DType::kFloat32}) {
      if (acc_dtype != dtype && !IsHalf(dtype)) continue;
      for (int64_t count : {0, 1, 9, 5003}) {
        for (size_t behind : {0, 1, 4}) {
          const Bytes values = ComputeValues(dtype, count, 5);
          const Bytes before = ComputeValues(acc_dtype, count, 6);
          const auto bytes = static_cast<size_t>(SizeBytes(dtype));
          const auto acc_bytes = static_cast<size_t>(SizeBytes(acc_dtype));
          Placed from(values, behind * bytes % 16), acc(before, behind % 2 * acc_bytes % 16);
          Bytes expected = before;
          MergeValues(dtype, values.data(), op, acc_dtype, expected.data(), count);
          CHECK_OK(cuda::DispatchMerge(dtype, from.data(), op, acc_dtype, acc.data(), count,
                                       LaunchHere{}));
          CHECK_EQ(FirstOther(acc_dtype, expected, acc.Take(),
                              BothNaN(dtype, values, acc_dtype, before, count)),
                   -1);
        }
      }
    }
  });
}

TEST(cuda_round_to_half_gives_the_bits_of_round_to_half) {
  for (DType dtype : kHalves) {
    for (int64_t count : {0, 1, 8, 30011}) {
      for (int64_t divisor : {1, 3}) {
        for (size_t behind : {0, 1}) {
          const Bytes values = ComputeValues(DType::kFloat32, count, 9);
          std::vector<float> means(static_cast<size_t>(count));
          if (count > 0) std::memcpy(means.data(), values.data(), values.size());
          if (divisor > 1) {
            for (float& mean : means) mean /= static_cast<float>(divisor);
          }
          Placed from(values, 4 * behind), to(Bytes(static_cast<size_t>(2 * count)), 0);
          Bytes expected(static_cast<size_t>(2 * count));
          RoundToHalf(dtype, means.data(), expected.data(), count);
          CHECK_OK(cuda::DispatchRound(dtype, reinterpret_cast<const float*>(from.data()), divisor,
                                       to.data(), count, LaunchHere{}));
          CHECK(to.Take() == expected);
        }
      }
    }
  }
}

TEST(cuda_add_lost_gives_the_bits_of_add_lost) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    for (int64_t count : {0, 1, 3, 6007}) {
      for (int64_t times : {1, 3}) {
        for (int with = 0; with < 6; ++with) {
          // `dst` is an array of its own, or one of the others.
          const auto size = static_cast<size_t>(SizeBytes(dtype));
          const bool adds = with % 2 == 0;
          const Bytes bytes[3] = {ComputeValues(dtype, count, 1), ComputeValues(dtype, count, 2),
                                  ComputeValues(dtype, count, 3)};
          Placed before(bytes[0], 0), values(bytes[1], with == 4 ? size : 0), decoded(bytes[2], 0);
          Placed own(Bytes(bytes[0].size()), 0);
          Placed& to = with == 0 ? own : with == 1 ? values : with == 2 ? before : decoded;
          Bytes expected(bytes[0].size());
          AddResidual(dtype, expected.data(), adds ? bytes[0].data() : nullptr, bytes[1].data(),
                  bytes[2].data(), count, times);
          CHECK_OK(cuda::DispatchAddLost(dtype, to.data(), adds ? before.data() : nullptr,
                                         values.data(), decoded.data(), count, times,
                                         LaunchHere{}));
          CHECK(to.Take() == expected);
        }
      }
    }
  }
}

TEST(cuda_differences_are_those_of_difference_h) {
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (bool exact : {false, true}) {
      if (!exact && dtype == DType::kOpaque8) continue;
      for (int64_t count : {0, 1, 5, 2503}) {
        for (Layout layout : {Layout::kAligned, Layout::kAllBehind, Layout::kApart}) {
          const int64_t size = SizeBytes(dtype);
          const Bytes a = ComputeValues(dtype, count, 11), b = ComputeValues(dtype, count, 12);
          const std::vector<bool> any_nan = BothNaN(dtype, a, dtype, b, count);
          Bytes expected(a.size());
          Placed x(a, Offset(layout, 0, size)), y(b, Offset(layout, 1, size));
          Placed to(expected, Offset(layout, 2, size));
          Subtract(dtype, exact, a.data(), b.data(), expected.data(), count);
          CHECK_OK(cuda::DispatchDifference<false>(dtype, exact, x.data(), y.data(), to.data(),
                                                   count, LaunchHere{}));
          CHECK_EQ(FirstOther(dtype, expected, to.Take(), any_nan), -1);

          // Bools have no sum: their differences are those of bits, either way.
          Add(dtype, exact || dtype == DType::kBool, a.data(), b.data(), expected.data(), count);
          CHECK_OK(cuda::DispatchDifference<true>(dtype, exact, x.data(), y.data(), y.data(), count,
                                                  LaunchHere{}));
          CHECK_EQ(FirstOther(dtype, expected, y.Take(), any_nan), -1);
        }
      }
    }
  }
}

TEST(cuda_fill_writes_elements) {
  for (int64_t size : {1, 2, 4, 8, 16}) {
    for (size_t behind : {0, 1, 2, 8, 15}) {
      for (int64_t count : {0, 1, 2, 3, 17, 5000}) {
        Bytes expected(static_cast<size_t>(count * size));
        Device::FillRun run = {nullptr, count, size, {}};
        for (int i = 0; i < 16; ++i) run.element[i] = static_cast<std::byte>(7 * i + 1);
        for (size_t i = 0; i < expected.size(); ++i) expected[i] = run.element[i % size];
        Placed to(Bytes(expected.size()), behind);
        run.to = to.data();
        CHECK_OK(cuda::DispatchFill(run, LaunchHere{}));
        CHECK(to.Take() == expected);
      }
    }
  }
  CHECK(!cuda::DispatchFill({nullptr, 1, 3, {}}, LaunchHere{}).ok());
}

TEST(cuda_copy_runs_copies_runs_of_any_alignment) {
  std::vector<Placed> from, to;
  std::vector<Bytes> bytes;
  from.reserve(600);
  to.reserve(600);
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < 16; ++j) {
      const size_t size = (i * 16 + j) * 7 % 150;
      bytes.push_back(ComputeValues(DType::kUInt8, static_cast<int64_t>(size), i * 16 + j));
      from.emplace_back(bytes.back(), i);
      to.emplace_back(Bytes(size), j);
    }
  }
  for (size_t size : {0, 1, 15, 16, 31, 47, 16384, 16385, 40000, 100003}) {
    for (size_t at : {0, 1, 4, 8, 13}) {
      bytes.push_back(ComputeValues(DType::kUInt8, static_cast<int64_t>(size), size));
      from.emplace_back(bytes.back(), at);
      to.emplace_back(Bytes(size), at * 3 % 16);
    }
  }
  std::vector<Device::CopyRun> runs;
  for (size_t i = 0; i < bytes.size(); ++i) {
    runs.push_back({to[i].data(), from[i].data(), static_cast<int64_t>(bytes[i].size())});
  }
  CHECK_OK(cuda::DispatchCopy(runs, LaunchHere{}));
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (to[i].Take() != bytes[i]) CHECK_EQ("other bytes of run", std::to_string(i));
  }
}

}  // namespace
}  // namespace jaxccomp
