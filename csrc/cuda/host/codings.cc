#include "cuda/host/codings.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "codec/registry.h"
#include "cuda/kernels/fixed_rate/formats.h"

namespace jaxccomp::cuda {
namespace {

// The codec's only stage, ignoring "raw"; nullopt if there is none or more than one.
std::optional<CodecStage> OnlyStage(const Codec& codec) {
  const Result<std::vector<CodecStage>> parsed = ParseCodecSpec(codec.traits().spec);
  if (!parsed.ok()) return std::nullopt;
  std::vector<CodecStage> stages = *parsed;
  std::erase_if(stages, [](const CodecStage& stage) { return stage.row->name == "raw"; });
  if (stages.size() != 1) return std::nullopt;
  return stages[0];
}

}  // namespace

std::optional<FixedRate> FindFixedRate(const Codec& codec) {
  const std::optional<CodecStage> stage = OnlyStage(codec);
  if (!stage) return std::nullopt;
  const auto* const row = std::find_if(std::begin(kFormats), std::end(kFormats),
                                       [&](const auto& f) { return f.name == stage->row->name; });
  if (row == std::end(kFormats)) return std::nullopt;
  FixedRate found;
  found.format = static_cast<Format>(row - kFormats);
  for (const CodecOption& option : stage->row->options) {
    if (option.name == "block") found.block = stage->options.Integer(option.name);
    if (option.name == "rounding") found.stochastic = stage->options.Text(option.name) == "stochastic";
    if (option.name == "threshold") {
      found.threshold = static_cast<float>(stage->options.Number(option.name));
    }
  }
  return found;
}

std::optional<Packing> FindPacking(const Codec& codec) {
  const std::optional<CodecStage> stage = OnlyStage(codec);
  if (!stage) return std::nullopt;
  if (stage->row->name == "lossless") return Packing{};
  const std::optional<nvcomp::Spec> spec = nvcomp::ReadSpec(stage->options.spec());
  return spec ? std::optional(Packing{spec}) : std::nullopt;
}

}  // namespace jaxccomp::cuda
