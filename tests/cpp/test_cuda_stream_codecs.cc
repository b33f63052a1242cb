// Codecs on the streams of programs: the kernels' bodies encode rows as the CPU's codecs do.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "cuda/host/stream_codecs.h"
#include "cuda/kernels/fixed_rate/dispatch.cuh"
#include "cuda_grid.h"
#include "fixed_rate_cases.h"
#include "placed.h"

namespace jaxccomp {
namespace {

using namespace testing;
using cuda::FixedRate;

constexpr cuda::StreamKernels kHere = {
    .encode = [](const FixedRate& codec, DType dtype, const void* values, int64_t count, void* code,
                 const uint32_t* step, CUstream_st*) {
      return cuda::DispatchEncode(codec, dtype, values, count, code, step, LaunchHere{});
    },
    .decode_into = [](const FixedRate& codec, DType dtype, const void* code, DType into,
                      void* values, int64_t count, CUstream_st*) {
      return cuda::DispatchDecode<false>(codec, dtype, code, into, values, count, LaunchHere{});
    },
    .decode_sum = [](const FixedRate& codec, DType dtype, const void* code, DType acc_dtype,
                     void* acc, int64_t count, CUstream_st*) {
      return cuda::DispatchDecode<true>(codec, dtype, code, acc_dtype, acc, count, LaunchHere{});
    }};

constexpr int64_t kRows = 3;
constexpr uint32_t kKeys[2 * kRows] = {0x89abcdef, 0x01234567, 5, 0, 0, 0xffffffff};

Bytes Rows(DType dtype, int64_t count) {
  Bytes all;
  for (int64_t row = 0; row < kRows; ++row) {
    const Bytes one = AsDType(dtype, CaseValues(static_cast<int>(row) == 1 ? 2 : 0, count));
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

void Compare(const FixedRateCase& c, DType dtype, int64_t count) {
  const cuda::CudaStreamCodecs codecs(&kHere);
  const Codec& codec = FindCodec(c.spec);
  const CodedRows rows = {&codec, dtype, kRows, count};
  const std::string what = c.spec + " " + std::string(Name(dtype)) + " " + std::to_string(count);
  CHECK(codecs.Runs(codec, dtype));

  const Bytes values = Rows(dtype, count);
  const size_t row_bytes = values.size() / kRows;
  Bytes expected;
  for (size_t row = 0; row < kRows; ++row) {
    const RandomKey key = {kKeys[2 * row] | static_cast<uint64_t>(kKeys[2 * row + 1]) << 32, 0, 0};
    const Bytes one =
        EncodeValues(c.spec, dtype, values.data() + row * row_bytes, count, key, 0);
    expected.insert(expected.end(), one.begin(), one.end());
  }
  Placed from(values, 0), to(Bytes(expected.size()), 1);
  CHECK_OK(codecs.Encode(rows, from.data(), kKeys, to.data(), nullptr));
  if (to.Take() != expected) CHECK_EQ("other bytes", what);

  Workspace workspace;
  const CodingContext context(workspace);
  const size_t code_bytes = expected.size() / kRows;
  const auto code_of = [&](size_t row) {
    return std::span<const std::byte>(expected).subspan(row * code_bytes, code_bytes);
  };
  Placed codes(expected, 1);
  for (DType out : {dtype, DType::kFloat32}) {
    const auto out_bytes = static_cast<size_t>(count * SizeBytes(out));
    Bytes decoded(kRows * out_bytes), sums;
    for (size_t row = 0; row < kRows; ++row) {
      std::byte* const at = decoded.data() + row * out_bytes;
      if (out == dtype) {
        CHECK_OK(codec.Decode(dtype, code_of(row), at, count, context));
      } else {   // adding to -0 changes no value and does not round
        std::fill_n(reinterpret_cast<float*>(at), count, -0.0f);
        CHECK_OK(codec.DecodeMerge(dtype, code_of(row), ReduceOp::kSum, out, at, count, context));
      }
    }
    Placed all(Bytes(decoded.size()), 0);
    CHECK_OK(codecs.Decode(rows, codes.data(), out, all.data(), nullptr));
    if (FirstOtherSum(out, decoded, decoded, decoded, all.Take(), kRows * count) >= 0) {
      CHECK_EQ("other values", what);
    }
    sums.assign(decoded.begin(), decoded.begin() + static_cast<ptrdiff_t>(out_bytes));
    for (size_t row = 1; row < kRows; ++row) {
      CHECK_OK(codec.DecodeMerge(dtype, code_of(row), ReduceOp::kSum, out, sums.data(), count,
                                 context));
    }
    Placed sum(Bytes(out_bytes), 0);
    CHECK_OK(codecs.DecodeSum(rows, codes.data(), out, sum.data(), nullptr));
    const Bytes got = sum.Take();
    for (int64_t i = 0; i < count; ++i) {
      const auto is_nan = [](uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; };
      const uint32_t a = FloatBits(out, sums.data(), i), b = FloatBits(out, got.data(), i);
      if (a != b && !(is_nan(a) && is_nan(b))) CHECK_EQ("other sum at " + std::to_string(i), what);
    }
  }
}

TEST(cuda_stream_codecs_encode_rows_like_the_cpu_codecs) {
  for (const FixedRateCase& c : FixedRateCases()) {
    for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      if (!FindCodec(c.spec).Supports(dtype)) continue;
      // Rows of an odd count of halves are aligned to two bytes only.
      for (int64_t count : {1, 301, 2 * 1024 + 44}) Compare(c, dtype, count);
    }
  }
}

TEST(cuda_stream_codecs_support_only_fixed_rate_codecs) {
  const cuda::CudaStreamCodecs codecs(&kHere);
  for (const char* spec : {"raw", "lossless", "int8|lossless", "topk"}) {
    const auto codec = LookupCodec(spec);
    if (!CHECK_OK(codec)) continue;
    CHECK(!codecs.Runs(**codec, DType::kFloat32));
    const CodedRows rows = {codec->get(), DType::kFloat32, 1, 8};
    CHECK_EQ(codecs.Encode(rows, nullptr, nullptr, nullptr, nullptr).code(), Code::kUnimplemented);
  }
  CHECK(!codecs.Runs(FindCodec("int8"), DType::kFloat64));
  CHECK(!codecs.Runs(FindCodec("bf16"), DType::kBFloat16));
}

TEST(cuda_stream_codecs_refuse_invalid_calls) {
  const cuda::CudaStreamCodecs codecs(&kHere);
  const Codec& codec = FindCodec("int8:rounding=stochastic");
  float values[8] = {};
  std::byte code[64] = {};
  const Status keyless = codecs.Encode({&codec, DType::kFloat32, 1, 8},
                                       reinterpret_cast<const std::byte*>(values), nullptr, code,
                                       nullptr);
  CHECK_EQ(keyless.code(), Code::kInvalidArgument);
  CHECK(keyless.message().find("needs a random key") != std::string::npos);
  const CodedRows none = {&codec, DType::kFloat32, 0, 8};
  CHECK_EQ(codecs.DecodeSum(none, code, DType::kFloat32, reinterpret_cast<std::byte*>(values),
                            nullptr).code(),
           Code::kInvalidArgument);
  CHECK_OK(codecs.Decode(none, code, DType::kFloat32, nullptr, nullptr));
}

}  // namespace
}  // namespace jaxccomp
