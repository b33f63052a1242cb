#include "execution/reference.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/crc32c.h"

namespace jaxccomp {
namespace {

uint32_t ChecksumOf(const Operation& op, const Part& part) {
  return Crc32c({ReferenceOf(op, part), static_cast<size_t>(part.bytes)});
}

// The rank that these values come from; negative if the operation does not determine it.
int SenderOf(const Operation& op, const Part& part) {
  const auto collective = static_cast<Collective>(op.header.collective);
  if (Info(collective).rooted) return op.header.root;
  if (collective == Collective::kAllgather) {
    return static_cast<int>(part.offset / op.call.inputs[static_cast<size_t>(part.index)].bytes);
  }
  return op.ends.from;
}

// The error if the references of the sender and of this rank differ.
Status OtherReference(const Operation& op, const Part& part) {
  const Communicator& comm = *op.endpoint->communicator;
  const int64_t first = part.offset / SizeBytes(part.dtype);
  const int64_t last = first + part.bytes / SizeBytes(part.dtype) - 1;
  const int sender = SenderOf(op, part);
  return {Code::kFailedPrecondition,
          "the reference of tensor " + std::to_string(part.index + 1) + " of " +
              std::to_string(op.call.inputs.size()) + " (" + std::string(Name(part.dtype)) +
              ", somewhere in values " + std::to_string(first) + " to " + std::to_string(last) +
              ") differs between " +
              (sender < 0 ? "the rank that" : comm.MemberName(sender) + ", which") + " sends, and " +
              comm.MemberName(op.endpoint->member) +
              ". What ref= is given must be the same on all ranks that send or receive it, bit for bit: "
              "pass what an earlier operation returned, and leave ref= out where there was none, such "
              "as after a checkpoint was loaded"};
}

}  // namespace

const std::byte* ReferenceOf(const Operation& op, const Part& part) {
  const Call& call = op.call;
  if (call.refs.empty()) return nullptr;
  const ReferencePlaces& places = op.plan->references;
  const bool is_result = part.space == Space::kOutput;
  const auto index = static_cast<size_t>(part.index);
  const int64_t before = is_result ? places.result_block * call.outputs[index].bytes
                                   : places.operand_block * call.inputs[index].bytes;
  const Tensor& ref = call.refs[index + (is_result ? places.first_result : 0)];
  return static_cast<const std::byte*>(ref.data) + before + part.offset;
}

ReferencePlaces PlacesOfReferences(const OpSpec& spec, int member, const Call& call) {
  ReferencePlaces places;
  if (spec.ReferencesEach() == 2) places.first_result = call.inputs.size();
  if (spec.collective == Collective::kAllgather) places.operand_block = member;
  if (spec.collective == Collective::kScatter) places.result_block = member;
  return places;
}

std::byte* PutChecksum(const Operation& op, const Part& part, std::byte* at) {
  const uint32_t checksum = ChecksumOf(op, part);
  std::memcpy(at, &checksum, sizeof(checksum));
  return at + sizeof(checksum);
}

Status TakeChecksum(const Operation& op, const Part& part, std::span<const std::byte>* code) {
  uint32_t sent = 0;
  if (code->size() < sizeof(sent)) {
    return {Code::kDataLoss, "an encoded message is too short for the checksum of its reference"};
  }
  std::memcpy(&sent, code->data(), sizeof(sent));
  *code = code->subspan(sizeof(sent));
  return sent == ChecksumOf(op, part) ? Status::Ok() : OtherReference(op, part);
}

Status CheckCodesHaveReferences(const Plan& plan) {
  const auto lies_in = [&](PartRange range, Space space) {
    const auto first = plan.parts.begin() + range.first;
    return std::all_of(first, first + range.count,
                       [&](const Part& part) { return part.space == space; });
  };
  for (const PlannedTask& task : plan.tasks) {
    const bool merges = task.kind == TaskKind::kMerge;
    // A result may have overwritten its reference, so it cannot be encoded again.
    const bool encodes =
        task.kind == TaskKind::kEncode && !lies_in(task.sources[0], Space::kInput);
    const bool decodes = task.kind == TaskKind::kDecode && !lies_in(task.dst, Space::kOutput);
    if (merges || encodes || decodes) {
      return {Code::kUnimplemented, "algorithm '" + std::string(plan.algorithm->name) +
                                        "' encodes values that have no reference: leave out ref=, or use another "
                                        "algorithm"};
    }
  }
  return Status::Ok();
}

}  // namespace jaxccomp
