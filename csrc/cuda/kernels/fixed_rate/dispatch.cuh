// Selects the body, job and number of CTAs for a call of fixed_rate.h, and calls launch(TypeTag<Body>{}, job, ctas).
// In the library `launch` starts a kernel, in tests it runs the body on the host.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/dtype.h"
#include "cuda/kernels/common/blocks.cuh"
#include "cuda/kernels/common/cast.cuh"
#include "cuda/kernels/common/round_randomly.cuh"
#include "cuda/kernels/fixed_rate/coders.cuh"
#include "cuda/kernels/fixed_rate/fixed_rate.h"
#include "cuda/kernels/fixed_rate/formats.h"
#include "cuda/kernels/fixed_rate/onebit.cuh"

namespace jaxccomp::cuda {

// Calls f(TypeTag<Coder>{}) with the coder of a format in coders.cuh. Decoding is the same with and without kRandom.
template <bool kRandom, typename F>
Status WithCoder(const FixedRate& codec, F&& f) {
  switch (codec.format) {
    case Format::kE4m3: return f(TypeTag<Float8<3>>{});
    case Format::kE5m2: return f(TypeTag<Float8<2>>{});
    case Format::kInt8: return f(TypeTag<Integer<8, kRandom>>{});
    case Format::kInt4: return f(TypeTag<Integer<4, kRandom>>{});
    case Format::kInt2: return f(TypeTag<Integer<2, kRandom>>{});
    case Format::kTernary: return f(TypeTag<Ternary<kRandom>>{});
    case Format::kTbq: return f(TypeTag<Threshold>{});
    default: return WrongCall(codec, Code::kInternal, "has no coder");
  }
}

inline constexpr bool HasCoder(Format format) {
  return format != Format::kOneBit && RowOf(format).code_bits != 16;
}

inline Status CheckAligned(const FixedRate& codec, DType dtype, const void* values) {
  if (Alignment(values) >= SizeBytes(dtype)) return Status::Ok();
  return WrongCall(codec, Code::kInvalidArgument,
                   "values of " + std::string(Name(dtype)) + " are not aligned to their size");
}

template <typename Shape>
BlockPlan PlanBlocks(const FixedRate& codec, int64_t count, const void* values,
                     const std::byte* code) {
  const int64_t block = BlockValues(codec);
  const int64_t block_columns = block / (Shape::kRun * Shape::kParts);
  BlockPlan plan = {};
  plan.columns = count / block * block_columns;
  plan.full_ctas = CeilDiv(plan.columns, Shape::kColumnsOfCta);
  plan.rest = count % block;
  plan.block_shift = std::countr_zero(static_cast<uint64_t>(block));
  plan.column_shift = std::countr_zero(static_cast<uint64_t>(block_columns));
  plan.values_alignment = Alignment(values);
  plan.headers_alignment = Alignment(code);
  plan.codes_alignment = Alignment(code + HeaderBytes(codec, count));
  return plan;
}

template <typename Body, typename Launch>
Status LaunchBlocks(typename Body::Job job, Launch& launch) {
  return launch(TypeTag<Body>{}, job, job.plan.full_ctas + (job.plan.rest > 0));
}

template <typename From, typename To, bool kAdd, typename Launch>
Status LaunchCast(const void* from, void* to, int64_t count, Launch& launch) {
  using Body = Cast<From, To, kAdd>;
  const CastJob job = {static_cast<const std::byte*>(from), static_cast<std::byte*>(to), count,
                       Alignment(from), Alignment(to)};
  return launch(TypeTag<Body>{}, job, CeilDiv(count, Body::kValuesOfCta));
}

template <typename Launch>
Status DispatchEncode(const FixedRate& codec, DType dtype, const void* values, int64_t count,
                      void* code, const uint32_t* step_dev, Launch launch) {
  if (Status status = CheckCall(codec, count); !status.ok()) return status;
  if (Status status = CheckDType(codec, dtype); !status.ok()) return status;
  if (Status status = CheckAligned(codec, dtype, values); !status.ok()) return status;
  if (codec.stochastic && step_dev == nullptr) {
    return WrongCall(codec, Code::kInvalidArgument, "stochastic rounding needs a random key");
  }
  if (count == 0) return Status::Ok();
  auto* const from = static_cast<const std::byte*>(values);
  auto* const to = static_cast<std::byte*>(code);
  std::byte* const codes = to + HeaderBytes(codec, count);

  if (codec.format == Format::kBf16 && codec.stochastic) {
    const RoundRandomlyJob job = {from, to, count, Alignment(from), Alignment(to), step_dev};
    return launch(TypeTag<RoundRandomly>{}, job, CeilDiv(count, RoundRandomly::kValuesOfCta));
  }
  if (codec.format == Format::kBf16) {
    return LaunchCast<float, BFloat16, false>(values, code, count, launch);
  }
  if (codec.format == Format::kFp16) {
    return LaunchCast<float, Float16, false>(values, code, count, launch);
  }
  return WithValues(dtype, [&]<typename T>(TypeTag<T>) {
    if (codec.format == Format::kOneBit) {
      using Body = EncodeOneBit<T>;
      const EncodeOneBitJob job = {
          from, to, codes, count, std::countr_zero(static_cast<uint64_t>(codec.block)),
          Alignment(to), Alignment(codes)};
      return launch(TypeTag<Body>{}, job,
                    CeilDiv(CeilDiv(count, codec.block), Body::kBlocksOfCta));
    }
    const auto encode = [&]<typename Coder>(TypeTag<Coder>) {
      const EncodeBlocksJob job = {
          PlanBlocks<BlockShape<Coder, T>>(codec, count, values, to), from, to, codes,
          codec.threshold, step_dev};
      return LaunchBlocks<EncodeBlocks<Coder, T>>(job, launch);
    };
    return codec.stochastic ? WithCoder<true>(codec, encode) : WithCoder<false>(codec, encode);
  });
}

// Decodes values of `dtype`, and stores them as values of `into`, or adds them to the values in memory (kAdd).
template <bool kAdd, typename Launch>
Status DispatchDecode(const FixedRate& codec, DType dtype, const void* code, DType into,
                      void* values, int64_t count, Launch launch) {
  if (Status status = CheckCall(codec, count); !status.ok()) return status;
  if (Status status = CheckDType(codec, dtype); !status.ok()) return status;
  if (Status status = CheckAligned(codec, into, values); !status.ok()) return status;
  if (into != dtype && into != DType::kFloat32) {
    return WrongCall(codec, Code::kInvalidArgument,
                     std::string(Name(dtype)) + " cannot be merged into " +
                         std::string(Name(into)) + ", only into itself and float32");
  }
  if (count == 0) return Status::Ok();
  auto* const from = static_cast<const std::byte*>(code);
  auto* const to = static_cast<std::byte*>(values);
  const std::byte* const codes = from + HeaderBytes(codec, count);

  if (codec.format == Format::kBf16) {
    return LaunchCast<BFloat16, float, kAdd>(code, values, count, launch);
  }
  if (codec.format == Format::kFp16) {
    return LaunchCast<Float16, float, kAdd>(code, values, count, launch);
  }
  return WithValues(into, [&]<typename T>(TypeTag<T>) {
    if (codec.format == Format::kOneBit) {
      using Body = DecodeOneBit<T, kAdd>;
      const DecodeOneBitJob job = {
          from, codes, to, count, std::countr_zero(static_cast<uint64_t>(codec.block)),
          Alignment(to), Alignment(from)};
      return launch(TypeTag<Body>{}, job, CeilDiv(count, Body::kValuesOfCta));
    }
    return WithCoder<false>(codec, [&]<typename Coder>(TypeTag<Coder>) {
      using Body = DecodeBlocks<Coder, T, kAdd>;
      return LaunchBlocks<Body>({PlanBlocks<BlockShape<Coder, T>>(codec, count, values, from),
                                 from, codes, to, codec.threshold, GreatestOf(dtype)},
                                launch);
    });
  });
}

}  // namespace jaxccomp::cuda
