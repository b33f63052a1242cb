#include "cuda/host/coding.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "codec/registry.h"
#include "cuda/kernels/fixed_rate/formats.h"
#include "cuda/kernels/sparse/sparse_formats.h"

namespace jaxccomp::cuda {
namespace {

std::optional<FixedRate> FindFixedRate(const CodecStage& stage) {
  const auto* const row = std::find_if(std::begin(kFormats), std::end(kFormats), [&](const auto& f) {
    return f.name == stage.row->name;
  });
  if (row == std::end(kFormats)) return std::nullopt;
  FixedRate found;
  found.format = static_cast<Format>(row - kFormats);
  for (const CodecOption& option : stage.row->options) {
    if (option.name == "block") found.block = stage.options.Integer(option.name);
    if (option.name == "rounding") found.stochastic = stage.options.Text(option.name) == "stochastic";
    if (option.name == "threshold") {
      found.threshold = static_cast<float>(stage.options.Number(option.name));
    }
  }
  return found;
}

std::optional<Sparse> FindSparse(const CodecStage& stage) {
  const auto* const name =
      std::find(std::begin(kSparseNames), std::end(kSparseNames), stage.row->name);
  if (name == std::end(kSparseNames)) return std::nullopt;
  Sparse found;
  found.format = static_cast<SparseFormat>(name - kSparseNames);
  found.density = stage.options.Number("density");
  found.unbiased =
      found.format == SparseFormat::kRandomK && stage.options.Text("unbiased") == "true";
  return found;
}

}  // namespace

int64_t Coding::LossyBytes(DType dtype, int64_t count) const {
  return sparse ? SparseMostBytes(*sparse, dtype, count)
                : HeaderBytes(*fixed, count) + CodeBytes(*fixed, count);
}

Status Coding::CheckDType(DType dtype) const {
  if (sparse) return CheckSparseDType(*sparse, dtype);
  return fixed ? cuda::CheckDType(*fixed, dtype) : Status::Ok();
}

std::optional<Coding> FindCoding(const Codec& codec) {
  const Result<std::vector<CodecStage>> parsed = ParseCodecSpec(codec.traits().spec);
  if (!parsed.ok()) return std::nullopt;
  std::vector<CodecStage> stages = *parsed;
  std::erase_if(stages, [](const CodecStage& stage) { return stage.row->name == "raw"; });
  Coding coding;
  if (!stages.empty()) {
    coding.lossless = stages.back().row->name == "lossless";
    coding.nvcomp = nvcomp::ReadSpec(stages.back().options.spec());
    if (coding.packs()) stages.pop_back();
  }
  if (stages.empty()) return coding;
  coding.fixed = FindFixedRate(stages[0]);
  coding.sparse = FindSparse(stages[0]);
  if (!coding.lossy() || stages.size() > 1) return std::nullopt;
  const auto first = LookupCodec(stages[0].options.spec());
  if (!first.ok()) return std::nullopt;
  // The second stage's kernels have to be told how much there is.
  if (coding.packs() && !(*first)->traits().fixed_rate) return std::nullopt;
  coding.between = (*first)->EncodedDType(DType::kFloat32);
  return coding;
}

}  // namespace jaxccomp::cuda
