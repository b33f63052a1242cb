// AddResidual: the compression error of each value.
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "common/half.h"
#include "reduce/kernels.h"
#include "reduce/residual.h"

namespace jaxccomp {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMaxValue = std::numeric_limits<float>::max();

TEST(residual_of_floats_is_the_compression_error) {
  const std::vector<float> values = {3, -1, kInfinity, 5, kNan, kMaxValue, -kMaxValue, kMaxValue, 0};
  const std::vector<float> decoded = {2.5, 1, 1, kInfinity, 0, 0, kMaxValue, 0, -0.0f};
  const std::vector<float> before = {10, 10, 10, 10, 10, 10, 10, kMaxValue, 0};
  std::vector<float> lost(values.size());
  const auto count = static_cast<int64_t>(values.size());
  AddResidual(DType::kFloat32, lost.data(), nullptr, values.data(), decoded.data(), count, 1);
  CHECK(lost == std::vector<float>({0.5, -2, 0, 0, 0, kMaxValue, 0, kMaxValue, 0}));
  AddResidual(DType::kFloat32, lost.data(), before.data(), values.data(), decoded.data(), count, 4);
  CHECK(lost == std::vector<float>({12, 2, 10, 10, 10, 10, 10, kMaxValue, 0}));
  // In place; one sum overflows.
  lost = before;
  AddResidual(DType::kFloat32, lost.data(), lost.data(), values.data(), decoded.data(), count, 1);
  CHECK(lost == std::vector<float>({10.5, 8, 10, 10, 10, kMaxValue, 10, 0, 0}));
}

TEST(residual_of_half_types_is_the_compression_error) {
  const std::vector<Float16> values = {ToFloat16(3.0f), ToFloat16(65504.0f), ToFloat16(kInfinity)};
  const std::vector<Float16> decoded = {ToFloat16(2.5f), ToFloat16(1.0f), ToFloat16(0.0f)};
  std::vector<Float16> lost(3);
  AddResidual(DType::kFloat16, lost.data(), nullptr, values.data(), decoded.data(), 3, 2);
  CHECK_EQ(ToFloat(lost[0]), 1.0f);
  CHECK_EQ(ToFloat(lost[1]), 0.0f);  // the loss exceeds float16's range
  CHECK_EQ(ToFloat(lost[2]), 0.0f);
  const std::vector<BFloat16> x = {ToBFloat16(3.0f), ToBFloat16(kNan)};
  const std::vector<BFloat16> y = {ToBFloat16(1.0f), ToBFloat16(1.0f)};
  std::vector<BFloat16> sums = {ToBFloat16(0.25f), ToBFloat16(0.25f)};
  AddResidual(DType::kBFloat16, sums.data(), sums.data(), x.data(), y.data(), 2, 3);
  CHECK_EQ(ToFloat(sums[0]), 6.25f);
  CHECK_EQ(ToFloat(sums[1]), 0.25f);
}

TEST(residual_has_equal_bits_on_all_instruction_sets) {
  std::mt19937_64 random(1);
  std::vector<double> values(3001), decoded(3001), before(3001), got(3001), expected(3001);
  for (auto* vector : {&values, &decoded, &before}) {
    for (double& value : *vector) value = __builtin_bit_cast(double, random());
  }
  for (const Kernels* kernels : RunnableKernels()) {
    for (int64_t count : {0, 1, 7, 64, 3001}) {
      for (double times : {1.0, 3.0}) {
        RunnableKernels().back()->residual_double(expected.data(), before.data(), values.data(),
                                              decoded.data(), count, times, 1e300);
        kernels->residual_double(got.data(), before.data(), values.data(), decoded.data(), count, times,
                             1e300);
        CHECK(got == expected);
      }
    }
  }
}

}  // namespace
}  // namespace jaxccomp
