// From a call of compute.h to the bodies that do it, as dispatch.cuh has it for codecs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "cuda/kernels/common/arithmetic.cuh"
#include "cuda/kernels/compute/compute.h"
#include "cuda/kernels/compute/compute_copy.cuh"
#include "cuda/kernels/compute/compute_reduce.cuh"
#include "cuda/kernels/compute/compute_residual.cuh"

namespace jaxccomp::cuda {

inline Status WrongCompute(DType dtype, const std::string& what) {
  return {Code::kInvalidArgument, "on the GPU, values of " + std::string(Name(dtype)) + " " + what};
}

inline Status CheckArrays(DType dtype, int64_t count, std::span<const TiledArray> arrays) {
  if (count < 0 || count > std::numeric_limits<int64_t>::max() / 64) {
    return WrongCompute(dtype, "cannot be " + std::to_string(count));
  }
  for (const TiledArray& array : arrays) {
    // Those of 16 bytes are read as two of 8.
    if (Alignment(array.at) < std::min<int64_t>(array.value_bytes, 8)) {
      return WrongCompute(dtype, "are not aligned to their size");
    }
  }
  return Status::Ok();
}

// ---- Copies ----

template <typename Launch>
Status DispatchCopy(std::span<const Device::CopyRun> runs, Launch launch) {
  CopyJob job = {};
  int64_t ctas = 0;
  const auto start = [&] {
    if (job.runs == 0) return Status::Ok();
    Status status = launch(TypeTag<CopyBytes>{}, job, ctas);
    job.runs = 0;
    ctas = 0;
    return status;
  };
  for (const Device::CopyRun& run : runs) {
    if (run.bytes <= 0) continue;
    if (job.runs == kMaxCopyRuns) {
      if (Status status = start(); !status.ok()) return status;
    }
    job.run[job.runs++] = {run.to, run.from, run.bytes, ctas};
    ctas += CopyCtas(run.to, run.from, run.bytes);
  }
  return start();
}

template <typename Launch>
Status DispatchFill(const Device::FillRun& run, Launch launch) {
  const int64_t size = run.element_bytes;
  if (size != 1 && size != 2 && size != 4 && size != 8 && size != 16) {
    return {Code::kInvalidArgument, "on the GPU, elements of " + std::to_string(size) +
                                        " bytes are not filled with, those of 1, 2, 4, 8 or 16 are"};
  }
  if (run.count <= 0) return Status::Ok();
  FillJob job = {};
  job.to = run.to;
  job.bytes = run.count * size;
  job.before =
      std::min<int64_t>(job.bytes, (kVectorBytes - BehindAligned(run.to)) % kVectorBytes);
  job.vectors = (job.bytes - job.before) / kVectorBytes;
  std::byte pattern[2 * kVectorBytes];
  for (int64_t i = 0; i < 2 * kVectorBytes; ++i) {
    pattern[i] = run.element[static_cast<size_t>(i % size)];
  }
  std::memcpy(&job.pattern, pattern, sizeof(job.pattern));
  std::memcpy(&job.vector, pattern + job.before, sizeof(job.vector));
  return launch(TypeTag<FillBytes>{}, job,
                std::max<int64_t>(1, CeilDiv(job.vectors, kVectorsOfCta)));
}

// ---- Reductions ----

// The types that stand for others of the same arithmetic: integers that only add or multiply are
// unsigned, and complex numbers are added as twice as many reals.
template <typename F>
Status WithUnsigned(int64_t bytes, F&& f) {
  switch (bytes) {
    case 1: return f(TypeTag<uint8_t>{}, 1);
    case 2: return f(TypeTag<uint16_t>{}, 1);
    case 4: return f(TypeTag<uint32_t>{}, 1);
    default: return f(TypeTag<uint64_t>{}, 1);
  }
}

template <typename F>
Status WithReal(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16: return f(TypeTag<Float16>{}, 1);
    case DType::kBFloat16: return f(TypeTag<BFloat16>{}, 1);
    case DType::kFloat32: return f(TypeTag<float>{}, 1);
    case DType::kFloat64: return f(TypeTag<double>{}, 1);
    default: return WrongCompute(dtype, "are not floating");
  }
}

// f(TypeTag<T>{}, how many T a value is), for sums and differences.
template <typename F>
Status WithTerms(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kComplex64: return f(TypeTag<float>{}, 2);
    case DType::kComplex128: return f(TypeTag<double>{}, 2);
    case DType::kBool:
    case DType::kOpaque8: return WrongCompute(dtype, "are not added");
    default: break;
  }
  return IsFloating(dtype) ? WithReal(dtype, f) : WithUnsigned(SizeBytes(dtype), f);
}

template <typename F>
Status WithFactors(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kComplex64: return f(TypeTag<Complex<float>>{}, 1);
    case DType::kComplex128: return f(TypeTag<Complex<double>>{}, 1);
    default: return WithTerms(dtype, f);
  }
}

template <typename F>
Status WithOrdered(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kInt8: return f(TypeTag<int8_t>{}, 1);
    case DType::kInt16: return f(TypeTag<int16_t>{}, 1);
    case DType::kInt32: return f(TypeTag<int32_t>{}, 1);
    case DType::kInt64: return f(TypeTag<int64_t>{}, 1);
    case DType::kBool: return f(TypeTag<uint8_t>{}, 1);
    case DType::kComplex64:
    case DType::kComplex128:
    case DType::kOpaque8: return WrongCompute(dtype, "have no order");
    default: break;
  }
  return IsFloating(dtype) ? WithReal(dtype, f) : WithUnsigned(SizeBytes(dtype), f);
}

template <typename F>
Status WithBits(DType dtype, F&& f) {
  if (IsFloating(dtype) || dtype == DType::kComplex64 || dtype == DType::kComplex128 ||
      dtype == DType::kOpaque8) {
    return WrongCompute(dtype, "are not combined bit by bit");
  }
  return f(TypeTag<uint8_t>{}, static_cast<int>(SizeBytes(dtype)));
}

// Calls f(TypeTag<T>{}, how many T a value is, TypeTag<Op>{}), or says what cannot be.
template <typename F>
Status WithReduction(DType dtype, ReduceOp op, F&& f) {
  const auto with = [&]<typename Op>(TypeTag<Op> tag) {
    return [&f, tag](auto type, int each) { return f(type, each, tag); };
  };
  switch (op) {
    case ReduceOp::kSum: return WithTerms(dtype, with(TypeTag<combine::Sum>{}));
    case ReduceOp::kProd: return WithFactors(dtype, with(TypeTag<combine::Prod>{}));
    case ReduceOp::kMin: return WithOrdered(dtype, with(TypeTag<combine::Min>{}));
    case ReduceOp::kMax: return WithOrdered(dtype, with(TypeTag<combine::Max>{}));
    case ReduceOp::kAnd: return WithBits(dtype, with(TypeTag<combine::And>{}));
    case ReduceOp::kOr: return WithBits(dtype, with(TypeTag<combine::Or>{}));
    case ReduceOp::kXor: return WithBits(dtype, with(TypeTag<combine::Xor>{}));
  }
  return WrongCompute(dtype, "have no reduction " + std::to_string(static_cast<int>(op)));
}

// One kernel: dst = [dst op] sources[0] op ..., of `count` T.
template <typename T, typename D, typename Op, typename Launch>
Status LaunchReduce(void* dst, bool begins_with_dst, std::span<const void* const> sources,
                    int64_t count, int64_t divisor, Launch launch) {
  using Body = ReduceArrays<T, D, Op>;
  ReduceJob job = {};
  TiledArray arrays[kMaxReduceSources + 1] = {{dst, sizeof(D)}};
  for (const void* source : sources) {
    job.sources[job.source_count++] = static_cast<const std::byte*>(source);
    arrays[job.source_count] = {source, sizeof(T)};
  }
  job.plan = PlanTiles<Body>(count, std::span(arrays).first(job.source_count + 1));
  job.dst = static_cast<std::byte*>(dst);
  job.begins_with_dst = begins_with_dst;
  job.divisor = divisor;
  return launch(TypeTag<Body>{}, job, job.plan.ctas);
}

// More sources than a kernel takes go through partial results: those of half types in floats, others
// where the result goes, unless that holds a source that is yet to be read.
template <typename T, typename Op, typename Launch>
Status ReduceMany(DType dtype, void* dst, std::span<const void* const> sources, int64_t count,
                  int64_t divisor, float* accumulator, Launch launch) {
  const auto later = sources.subspan(kMaxReduceSources);
  const bool is_source = std::find(later.begin(), later.end(), dst) != later.end();
  void* const partial = kIsHalf<T> || is_source ? accumulator : dst;
  if (partial == nullptr) {
    return WrongCompute(dtype, "from " + std::to_string(sources.size()) +
                                   " sources need memory for partial results");
  }
  using P = Held<T>;
  for (size_t first = 0; first < sources.size(); first += kMaxReduceSources) {
    const auto some = sources.subspan(
        first, std::min<size_t>(kMaxReduceSources, sources.size() - first));
    const bool last = first + some.size() == sources.size() && !kIsHalf<T>;
    Status status =
        LaunchReduce<T, P, Op>(partial, first > 0, some, count, last ? divisor : 1, launch);
    if (!status.ok()) return status;
  }
  if (partial == dst) return Status::Ok();
  if constexpr (kIsHalf<T>) {
    const void* const sums[] = {partial};
    return LaunchReduce<float, T, combine::Sum>(dst, false, sums, count, divisor, launch);
  } else {
    const Device::CopyRun run = {static_cast<std::byte*>(dst),
                                 static_cast<const std::byte*>(partial),
                                 count * static_cast<int64_t>(sizeof(P))};
    return DispatchCopy({&run, 1}, launch);
  }
}

template <typename Launch>
Status DispatchReduce(DType dtype, ReduceOp op, void* dst, std::span<const void* const> sources,
                      int64_t count, int64_t divisor, float* accumulator, Launch launch) {
  std::vector<TiledArray> arrays = {{dst, SizeBytes(dtype)}};
  for (const void* source : sources) arrays.push_back({source, SizeBytes(dtype)});
  if (Status status = CheckArrays(dtype, count, arrays); !status.ok()) return status;
  return WithReduction(dtype, op, [&]<typename T, typename Op>(TypeTag<T>, int each, TypeTag<Op>) {
    if (count == 0 || sources.empty()) return Status::Ok();
    const int64_t by = kHasNaN<T> ? std::max<int64_t>(divisor, 1) : 1;
    if (sources.size() == 1 && by == 1) {
      if (sources[0] == dst) return Status::Ok();
      const Device::CopyRun run = {static_cast<std::byte*>(dst),
                                   static_cast<const std::byte*>(sources[0]),
                                   count * SizeBytes(dtype)};
      return DispatchCopy({&run, 1}, launch);
    }
    if (sources.size() > kMaxReduceSources) {
      return ReduceMany<T, Op>(dtype, dst, sources, count * each, by, accumulator, launch);
    }
    return LaunchReduce<T, T, Op>(dst, false, sources, count * each, by, launch);
  });
}

template <typename Launch>
Status DispatchMerge(DType dtype, const void* values, ReduceOp op, DType acc_dtype, void* acc,
                     int64_t count, Launch launch) {
  if (acc_dtype == dtype) {
    const void* const sources[] = {acc, values};
    return DispatchReduce(dtype, op, acc, sources, count, 1, nullptr, launch);
  }
  if (!IsHalf(dtype) || acc_dtype != DType::kFloat32) {
    return WrongCompute(dtype, "cannot be merged into " + std::string(Name(acc_dtype)));
  }
  const TiledArray arrays[] = {{values, SizeBytes(dtype)}, {acc, SizeBytes(acc_dtype)}};
  if (Status status = CheckArrays(dtype, count, arrays); !status.ok()) return status;
  return WithReduction(dtype, op, [&]<typename T, typename Op>(TypeTag<T>, int, TypeTag<Op>) {
    if constexpr (kIsHalf<T>) {
      if (count == 0) return Status::Ok();
      const void* const sources[] = {values};
      return LaunchReduce<T, float, Op>(acc, true, sources, count, 1, launch);
    } else {
      return WrongCompute(dtype, "are no halves");
    }
  });
}

template <typename Launch>
Status DispatchRound(DType dtype, const float* values, int64_t divisor, void* dst, int64_t count,
                     Launch launch) {
  const TiledArray arrays[] = {{values, sizeof(float)}, {dst, SizeBytes(dtype)}};
  if (Status status = CheckArrays(dtype, count, arrays); !status.ok()) return status;
  if (!IsHalf(dtype)) return WrongCompute(dtype, "are not what floats are rounded to here");
  if (count == 0) return Status::Ok();
  const void* const sources[] = {values};
  if (dtype == DType::kBFloat16) {
    return LaunchReduce<float, BFloat16, combine::Sum>(dst, false, sources, count, divisor, launch);
  }
  return LaunchReduce<float, Float16, combine::Sum>(dst, false, sources, count, divisor, launch);
}

// ---- Differences ----

template <typename Launch>
Status DispatchXor(DType dtype, const void* a, const void* b, void* out, int64_t count,
                   Launch launch) {
  if (count == 0) return Status::Ok();
  const void* const sources[] = {a, b};
  return LaunchReduce<uint8_t, uint8_t, combine::Xor>(out, false, sources,
                                                      count * SizeBytes(dtype), 1, launch);
}

// `kBack`: the values of a difference. Bools differ in their bits.
template <bool kBack, typename Launch>
Status DispatchDifference(DType dtype, bool exact, const void* values, const void* ref, void* out,
                          int64_t count, Launch launch) {
  const int64_t bytes = exact ? 1 : SizeBytes(dtype);
  const TiledArray arrays[] = {{values, bytes}, {ref, bytes}, {out, bytes}};
  if (Status status = CheckArrays(dtype, count, arrays); !status.ok()) return status;
  if (exact || dtype == DType::kBool) return DispatchXor(dtype, values, ref, out, count, launch);
  return WithTerms(dtype, [&]<typename T>(TypeTag<T>, int each) {
    if (count == 0) return Status::Ok();
    const void* const sources[] = {kBack ? ref : values, kBack ? values : ref};
    using Op = std::conditional_t<kBack, combine::Sum, combine::Minus>;
    return LaunchReduce<T, T, Op>(out, false, sources, count * each, 1, launch);
  });
}

template <typename Launch>
Status DispatchAddLost(DType dtype, void* dst, const void* before, const void* values,
                       const void* decoded, int64_t count, int64_t times, Launch launch) {
  const int64_t bytes = SizeBytes(dtype);
  const TiledArray all[] = {{dst, bytes}, {values, bytes}, {decoded, bytes}, {before, bytes}};
  const auto arrays = std::span(all).first(before == nullptr ? 3 : 4);
  if (Status status = CheckArrays(dtype, count, arrays); !status.ok()) return status;
  return WithReal(dtype, [&]<typename T>(TypeTag<T>, int) {
    if (count == 0) return Status::Ok();
    using Body = AddResidualArrays<T>;
    const ResidualJob job = {PlanTiles<Body>(count, arrays), static_cast<std::byte*>(dst),
                         static_cast<const std::byte*>(before),
                         static_cast<const std::byte*>(values),
                         static_cast<const std::byte*>(decoded), times};
    return launch(TypeTag<Body>{}, job, job.plan.ctas);
  });
}

}  // namespace jaxccomp::cuda
