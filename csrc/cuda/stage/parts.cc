#include "cuda/stage/parts.h"

#include <algorithm>

#include "collective/algorithm.h"
#include "common/round_up.h"

namespace jaxccomp {
namespace {

constexpr int64_t kMaxParts = 256;
// Parts end at a multiple of this: no part ends inside an element, and few end inside a block of a codec.
constexpr int64_t kPartMultiple = 4096;

int64_t BlocksOf(Blocks blocks, const Tensor& tensor) {
  return blocks == Blocks::kPerRank ? std::max<int64_t>(tensor.rows, 1) : 1;
}

Slice Whole(const std::vector<Tensor>& tensors, size_t i) {
  return {.tensor = i, .bytes = tensors[i].bytes, .rows = tensors[i].rows};
}

}  // namespace

bool IsCutIntoParts(const OpSpec& spec) {
  switch (spec.collective) {
    case Collective::kBcast:
    case Collective::kAllreduce:
    case Collective::kReduce:
    case Collective::kAllgather:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kReduceScatter:
    case Collective::kAlltoall:
    case Collective::kScan:
    case Collective::kExscan:
    case Collective::kPermute: return true;
    default: return false;
  }
}

std::vector<StagePart> CutIntoParts(const OpSpec& spec, const Call& call, int64_t part_bytes) {
  std::vector<StagePart> parts(1);
  if (!IsCutIntoParts(spec) || call.inputs.size() != call.outputs.size()) {
    for (size_t i = 0; i < call.inputs.size(); ++i) parts[0].inputs.push_back(Whole(call.inputs, i));
    for (size_t i = 0; i < call.outputs.size(); ++i) parts[0].outputs.push_back(Whole(call.outputs, i));
    return parts;
  }
  const CollectiveInfo& info = Info(spec.collective);
  int64_t all_bytes = 0;
  for (const Tensor& t : call.inputs) all_bytes += t.bytes / BlocksOf(info.input, t);
  part_bytes = std::max(part_bytes, all_bytes / kMaxParts);
  part_bytes = RoundUp(part_bytes, kPartMultiple);

  int64_t room = part_bytes;   // in the last part
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Tensor &in = call.inputs[i], &out = call.outputs[i];
    const int64_t in_blocks = BlocksOf(info.input, in), out_blocks = BlocksOf(info.output, out);
    const int64_t block_bytes = in.bytes / in_blocks;
    int64_t offset = 0;
    do {
      if (room == 0) {
        parts.emplace_back();
        room = part_bytes;
      }
      const int64_t bytes = std::min(block_bytes - offset, room);
      parts.back().inputs.push_back({i, in_blocks, block_bytes, offset, bytes, in.rows});
      parts.back().outputs.push_back({i, out_blocks, block_bytes, offset, bytes, out.rows});
      offset += bytes;
      // Start the next tensor at a multiple of kPartMultiple, which is aligned for every dtype.
      room = offset < block_bytes ? 0 : room - std::min(room, RoundUp(bytes, kPartMultiple));
    } while (offset < block_bytes);
  }
  return parts;
}

}  // namespace jaxccomp
