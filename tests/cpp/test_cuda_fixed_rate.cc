// The kernels of csrc/cuda, run on the host: they give the bytes and values of the CPU's codecs.
#include <algorithm>
#include <cstring>
#include <string>

#include "check.h"
#include "cuda/kernels/fixed_rate/dispatch.cuh"
#include "cuda_grid.h"
#include "fixed_rate_cases.h"
#include "placed.h"

namespace jaxccomp {
namespace {

using namespace testing;

constexpr uint32_t kStep[] = {0x89abcdef, 0x01234567};
constexpr RandomKey kKey = {0x0123456789abcdef, 0, 0};
constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

struct Where {
  size_t values;   // offset from a multiple of 16
  size_t code;
};

std::string Describe(const FixedRateCase& c, DType dtype, int64_t count, int kind, Where where) {
  return c.spec + " " + std::string(Name(dtype)) + " count " + std::to_string(count) + " kind " +
         std::to_string(kind) + " code at " + std::to_string(where.code);
}

void Compare(const FixedRateCase& c, DType dtype, int64_t count, int kind, Where where) {
  Workspace workspace;
  const CodingContext context(workspace);
  const std::string what = Describe(c, dtype, count, kind, where);
  const Bytes values = AsDType(dtype, CaseValues(kind, count));
  const Bytes code = EncodeValues(c.spec, dtype, values.data(), count, kKey, 0);

  Placed from(values, where.values), to(Bytes(code.size()), where.code);
  CHECK_OK(cuda::DispatchEncode(c.codec, dtype, from.data(), count, to.data(), kStep, LaunchHere{}));
  if (to.Take() != code) CHECK_EQ("other bytes", what);

  Placed encoded(code, where.code);
  Bytes decoded(values.size());
  CHECK_OK(FindCodec(c.spec).Decode(dtype, code, decoded.data(), count, context));
  Placed out(Bytes(values.size()), where.values);
  CHECK_OK(cuda::DispatchDecode<false>(c.codec, dtype, encoded.data(), dtype, out.data(), count,
                                       LaunchHere{}));
  if (out.Take() != decoded) CHECK_EQ("other values", what);

  for (DType acc_dtype : {dtype, DType::kFloat32}) {
    const Bytes before = AsDType(acc_dtype, CaseValues((kind + 2) % kValueKinds, count));
    Bytes sums = before;
    CHECK_OK(FindCodec(c.spec).DecodeMerge(dtype, code, ReduceOp::kSum, acc_dtype, sums.data(),
                                           count, context));
    // Decoded values as float32, from which FirstOtherSum detects NaN.
    Floats added(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      added[i] = __builtin_bit_cast(float, FloatBits(dtype, decoded.data(), i));
    }
    const auto value_bytes = static_cast<size_t>(SizeBytes(acc_dtype));
    Placed acc(before, where.values % value_bytes == 0 ? where.values : value_bytes);
    CHECK_OK(cuda::DispatchDecode<true>(c.codec, dtype, encoded.data(), acc_dtype, acc.data(),
                                        count, LaunchHere{}));
    const int64_t other =
        FirstOtherSum(acc_dtype, before, AsDType(acc_dtype, added), sums, acc.Take(), count);
    if (other >= 0) CHECK_EQ("other sum at " + std::to_string(other), what);
  }
}

TEST(cuda_fixed_rate_kernels_return_the_bytes_of_the_cpu_codecs) {
  for (const FixedRateCase& c : FixedRateCases()) {
    const int64_t block = std::max<int64_t>(cuda::BlockValues(c.codec), 32);
    for (DType dtype : kDTypes) {
      if (!FindCodec(c.spec).Supports(dtype)) continue;
      for (int kind = 0; kind < kValueKinds; ++kind) {
        Compare(c, dtype, 2 * block + 4099, kind, {0, 0});
      }
    }
  }
}

// The last block, or run, is partly filled, in all relevant ways.
TEST(cuda_fixed_rate_kernels_handle_odd_counts) {
  for (const FixedRateCase& c : FixedRateCases()) {
    const int64_t block = std::max<int64_t>(cuda::BlockValues(c.codec), 32);
    for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{5}, int64_t{9}, int64_t{31},
                          block - 1, block, block + 1, 3 * block + 17}) {
      Compare(c, DType::kFloat32, count, 2, {0, 0});
      if (FindCodec(c.spec).Supports(DType::kBFloat16)) {
        Compare(c, DType::kBFloat16, count, 0, {0, 0});
      }
    }
  }
}

TEST(cuda_fixed_rate_kernels_accept_any_alignment) {
  for (const FixedRateCase& c : FixedRateCases()) {
    for (size_t at : {1, 2, 4, 8}) {
      Compare(c, DType::kFloat32, 1500, 0, {at < 4 ? 4 : at, at});
      if (!FindCodec(c.spec).Supports(DType::kFloat16)) continue;
      Compare(c, DType::kFloat16, 1500, 0, {at < 2 ? 2 : at, at});
    }
  }
}

TEST(cuda_fixed_rate_sizes_equal_the_cpu_codecs) {
  for (const FixedRateCase& c : FixedRateCases()) {
    for (int64_t count : {0, 1, 7, 31, 32, 33, 1000, 4097, 1 << 20}) {
      CHECK_EQ(cuda::HeaderBytes(c.codec, count) + cuda::CodeBytes(c.codec, count),
               FindCodec(c.spec).MaxEncodedBytes(DType::kFloat32, count));
    }
  }
}

TEST(cuda_fixed_rate_refuses_unsupported_dtypes_and_addresses) {
  const auto encode = [](cuda::FixedRate codec, DType dtype, int64_t count, size_t offset) {
    alignas(16) static std::byte values[64], code[64];
    return cuda::DispatchEncode(codec, dtype, values + offset, count, code, nullptr, LaunchHere{});
  };
  const cuda::FixedRate int8 = {cuda::Format::kInt8, 32};
  CHECK_OK(encode(int8, DType::kFloat32, 4, 0));
  CHECK_EQ(encode(int8, DType::kFloat64, 4, 0).code(), Code::kUnimplemented);
  CHECK_EQ(encode({cuda::Format::kBf16}, DType::kFloat16, 4, 0).code(), Code::kUnimplemented);
  CHECK_EQ(encode({cuda::Format::kInt8, 48}, DType::kFloat32, 4, 0).message(),
           "codec 'int8' on the GPU: block=48 is not one of 32, 64, 128, 256");
  CHECK_EQ(encode(int8, DType::kFloat32, -1, 0).code(), Code::kInvalidArgument);
  CHECK_EQ(encode(int8, DType::kFloat32, 4, 2).code(), Code::kInvalidArgument);
  CHECK_EQ(encode({cuda::Format::kInt8, 32, true}, DType::kFloat32, 4, 0).message(),
           "codec 'int8' on the GPU: stochastic rounding needs a random key");
}

}  // namespace
}  // namespace jaxccomp
