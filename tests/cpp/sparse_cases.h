// What the kernels of the sparse codecs are compared on, by the tests that run them on the host and by
// those on a GPU.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels/sparse/sparse.h"
#include "cuda/kernels/sparse/sparse_formats.h"
#include "fixed_rate_cases.h"

namespace jaxccomp::testing {

struct SparseCase {
  std::string spec;
  cuda::Sparse codec;
};

// Every codec, for each density; the first is topk's, the second dgc's.
inline std::vector<SparseCase> SparseCases(const std::vector<const char*>& densities) {
  using cuda::SparseFormat;
  std::vector<SparseCase> cases;
  for (const char* text : densities) {
    const std::string options = std::string(":density=") + text;
    const double density = std::strtod(text, nullptr);
    cases.push_back({"topk" + options, {SparseFormat::kTopK, density}});
    cases.push_back({"dgc" + options, {SparseFormat::kDgc, density}});
    cases.push_back({"randomk" + options, {SparseFormat::kRandomK, density}});
    cases.push_back({"randomk" + options + ",unbiased=true", {SparseFormat::kRandomK, density, true}});
  }
  return cases;
}

enum class SparseKind {
  kGaussian, kHeavyTailed, kConstant, kZero, kFewNotZero, kFewValues, kSubnormal, kHuge, kNaN,
  kInfinity
};
inline constexpr SparseKind kSparseKinds[] = {
    SparseKind::kGaussian,   SparseKind::kHeavyTailed, SparseKind::kConstant, SparseKind::kZero,
    SparseKind::kFewNotZero, SparseKind::kFewValues,   SparseKind::kSubnormal, SparseKind::kHuge,
    SparseKind::kNaN,        SparseKind::kInfinity};

inline Bytes SparseValues(SparseKind kind, DType dtype, int64_t count) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::cauchy_distribution<float> cauchy;
  const float huge = dtype == DType::kFloat16 ? 65504 : 0x1.fep127f;
  const float least = dtype == DType::kFloat16    ? 0x1p-24f
                      : dtype == DType::kBFloat16 ? 0x1p-133f
                                                  : 0x1p-149f;
  Floats values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const float small = static_cast<float>(random() % 5) - 2;
    switch (kind) {
      case SparseKind::kGaussian: values[i] = normal(random); break;
      case SparseKind::kHeavyTailed: values[i] = std::clamp(cauchy(random), -huge, huge); break;
      case SparseKind::kConstant: values[i] = -1.5f; break;
      case SparseKind::kZero: values[i] = i % 2 ? -0.0f : 0.0f; break;
      case SparseKind::kFewNotZero: values[i] = random() % 1000 == 0 ? normal(random) : -0.0f; break;
      case SparseKind::kFewValues: values[i] = small; break;
      case SparseKind::kSubnormal: values[i] = small * least; break;
      case SparseKind::kHuge: values[i] = small * huge / 2; break;
      case SparseKind::kNaN: values[i] = i == count * 5 / 7 ? -kNaN : normal(random); break;
      case SparseKind::kInfinity: values[i] = i == count / 3 ? -kInfinity : small; break;
    }
  }
  return AsDType(dtype, values);
}

}  // namespace jaxccomp::testing
