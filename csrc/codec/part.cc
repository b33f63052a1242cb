#include "codec/part.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "codec/merge.h"
#include "reduce/identity.h"
#include "reduce/residual.h"

namespace jaxccomp {
namespace {

// Empty arrays may have a null address, which memcpy must not get.
void CopyValues(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Merges one raw and one encoded source. Reductions commute, so the code can be merged into dst without storing decoded
// values.
Status MergeInto(const Codec& codec, DType dtype, ReduceOp op, int64_t divisor, void* dst,
                 int64_t count, const void* values, std::span<const std::byte> code,
                 Workspace& workspace) {
  if (dst != values) CopyValues(dst, values, count * SizeBytes(dtype));
  Status status = codec.DecodeMerge(dtype, code, op, dtype, dst, count, CodingContext(workspace));
  if (!status.ok() || divisor == 1) return status;
  const void* const sources[] = {dst};
  Reduce(dtype, op, dst, sources, count, divisor);
  return status;
}

// Decodes all codes, then reduces all sources at once.
Status MergeDecoded(const Codec* codec, DType dtype, ReduceOp op, int64_t divisor, void* dst, int64_t count,
                    std::span<const MergeSource> sources, Workspace& workspace) {
  struct Decoded;
  const auto codes = std::count_if(sources.begin(), sources.end(),
                                   [](const MergeSource& source) { return source.values == nullptr; });
  const int64_t stride = (count * SizeBytes(dtype) + 63) / 64 * 64;
  std::byte* at = workspace.Bytes<Decoded>(stride * static_cast<int64_t>(codes));
  auto& values = workspace.Get<std::vector<const void*>>();
  values.clear();
  for (const MergeSource& source : sources) {
    values.push_back(source.values);
    if (source.values != nullptr) continue;
    Status status = DecodePart(codec, dtype, source.code, at, count, CodingContext(workspace));
    if (!status.ok()) return status;
    values.back() = at;
    at += stride;
  }
  Reduce(dtype, op, dst, values, count, divisor);
  return Status::Ok();
}

// For half types: decodes and merges in float, so that lossy codes are not rounded before the addition.
Status MergeWide(const Codec& codec, DType dtype, ReduceOp op, int64_t divisor, void* dst,
                 int64_t count, std::span<const MergeSource> sources, Workspace& workspace) {
  struct Accumulator;
  auto* const acc = reinterpret_cast<float*>(
      workspace.Bytes<Accumulator>(count * static_cast<int64_t>(sizeof(float))));
  FillIdentity(DType::kFloat32, op, acc, count);
  for (const MergeSource& source : sources) {
    if (source.values != nullptr) {
      MergeValues(dtype, source.values, op, DType::kFloat32, acc, count);
      continue;
    }
    Status status = codec.DecodeMerge(dtype, source.code, op, DType::kFloat32, acc, count,
                                      CodingContext(workspace));
    if (!status.ok()) return status;
  }
  if (dtype == DType::kBFloat16 && op == ReduceOp::kSum && !AllFinite(acc, count)) {
    return MergeDecoded(&codec, dtype, op, divisor, dst, count, sources, workspace);
  }
  if (divisor > 1) {
    const void* const sum[] = {acc};
    Reduce(DType::kFloat32, op, acc, sum, count, divisor);
  }
  RoundToHalf(dtype, acc, dst, count);
  return Status::Ok();
}

}  // namespace

Status DecodePart(const Codec* codec, DType dtype, std::span<const std::byte> code, void* dst,
                  int64_t count, const CodingContext& context) {
  if (codec != nullptr) return codec->Decode(dtype, code, dst, count, context);
  if (static_cast<int64_t>(code.size()) != count * SizeBytes(dtype)) {
    return {Code::kDataLoss, "an encoded message does not have the length that it should"};
  }
  CopyValues(dst, code.data(), std::ssize(code));
  return Status::Ok();
}

Result<int64_t> EncodePart(const Codec* codec, DType dtype, const void* values, int64_t count,
                           std::span<std::byte> code, const CodingContext& context) {
  if (codec != nullptr) return codec->Encode(dtype, values, count, code, context);
  const int64_t bytes = count * SizeBytes(dtype);
  CopyValues(code.data(), values, bytes);
  return bytes;
}

Status MergePart(const Codec* codec, DType dtype, ReduceOp op, int64_t divisor, void* dst,
                 int64_t count, std::span<const MergeSource> sources, Workspace& workspace) {
  size_t codes = 0;
  for (const MergeSource& source : sources) codes += source.values == nullptr;
  if (codec != nullptr && codes == 1 && sources.size() == 2 && !IsHalf(dtype)) {
    const MergeSource& first = sources[0];
    const MergeSource& second = sources[1];
    return MergeInto(*codec, dtype, op, divisor, dst, count,
                     first.values != nullptr ? first.values : second.values,
                     first.values != nullptr ? second.code : first.code, workspace);
  }
  // Lossless codes are merged like raw values, so that the result has the same bits, including signs of zeros.
  if (codec != nullptr && codes > 0 && IsHalf(dtype) && !codec->traits().lossless) {
    return MergeWide(*codec, dtype, op, divisor, dst, count, sources, workspace);
  }
  return MergeDecoded(codec, dtype, op, divisor, dst, count, sources, workspace);
}

void AddOperand(DType dtype, const void* operand, const void* residual, void* dst, int64_t count) {
  if (dst != residual) CopyValues(dst, residual, count * SizeBytes(DType::kFloat32));
  MergeValues(dtype, operand, ReduceOp::kSum, DType::kFloat32, dst, count);
}

Status ResidualPart(const Codec* codec, DType dtype, void* dst, const void* before, const void* values,
                std::span<const std::byte> code, int64_t count, int64_t times,
                Workspace& workspace) {
  if (codec != nullptr && dst == values && before == nullptr && times == 1) {
    const Result<bool> kept = codec->KeepLost(dtype, code, dst, count, CodingContext(workspace));
    if (!kept.ok() || *kept) return kept.status();
  }
  struct OfLost;
  std::byte* const decoded = workspace.Bytes<OfLost>(count * SizeBytes(dtype));
  Status status = DecodePart(codec, dtype, code, decoded, count, CodingContext(workspace));
  if (status.ok()) AddResidual(dtype, dst, before, values, decoded, count, times);
  return status;
}

}  // namespace jaxccomp
