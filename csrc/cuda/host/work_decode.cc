// Work: decoding, and what is made of decoded values. What comes out has the bits of codec/part.cc.

#include <algorithm>
#include <cstring>

#include "codec/lossless/layout.h"
#include "cuda/host/work.h"
#include "reduce/identity.h"

namespace jaxccomp::cuda {

Status Work::Decode(std::span<const Device::DecodeRun> runs) {
  std::vector<Incoming> codes;
  std::vector<const Device::DecodeRun*> coded;
  std::vector<Device::CopyRun> raw;
  for (const Device::DecodeRun& run : runs) {
    Status status = Expect(run.codec, run.dtype, run.count, run.code, &codes);
    if (!status.ok()) return status;
    if (codes.back().coding->raw() && run.ref == nullptr) {
      codes.pop_back();
      raw.push_back({run.values, run.code.data(), std::ssize(run.code)});
    } else {
      coded.push_back(&run);
    }
  }
  if (Status status = Copy(raw); !status.ok()) return status;
  if (Status status = Fetch(&codes); !status.ok()) return status;
  const Scratch::Place place = scratch_.place();
  for (size_t i = 0; i < codes.size(); ++i) {
    scratch_.GoTo(place);
    Status status = DecodeTo(codes[i], coded[i]->ref, coded[i]->values);
    if (!status.ok()) return status;
  }
  return FetchVerdicts();
}

Status Work::DecodeTo(const Incoming& from, const void* ref, void* values) {
  const Coding& coding = *from.coding;
  if (ref != nullptr && !coding.takes_reference()) {
    Result<const std::byte*> difference = Decoded(from);
    if (!difference.ok() || from.count == 0) return difference.status();
    return context_.kernels.add(from.dtype, coding.exact(), *difference, ref, values, from.count,
                                stream_);
  }
  if (coding.raw()) return CopyOne(values, from.at, std::ssize(from.code));
  if (!coding.lossy()) return DecodePacked(from, from.dtype, from.count, ref, values);
  Result<std::span<const std::byte>> code = LossyCode(from);
  return code.ok() ? DecodeLossy(from, *code, values) : code.status();
}

Status Work::DecodeLossy(const Incoming& from, std::span<const std::byte> code, void* values) {
  if (from.coding->fixed) {
    return context_.kernels.decode(*from.coding->fixed, from.dtype, code.data(), values,
                                   from.count, stream_);
  }
  Result<SparseDecodeCall> call = SparseCall(from, code, values);
  return call.ok() ? context_.kernels.sparse_decode(*call, stream_) : call.status();
}

Status Work::AddDecoded(const Incoming& from, float* acc) {
  Result<std::span<const std::byte>> code = LossyCode(from);
  if (!code.ok()) return code.status();
  if (from.coding->fixed) {
    return context_.kernels.decode_sum(*from.coding->fixed, from.dtype, code->data(),
                                       DType::kFloat32, acc, from.count, stream_);
  }
  Result<SparseDecodeCall> call = SparseCall(from, *code, acc);
  return call.ok() ? context_.kernels.sparse_decode_sum(*call, stream_) : call.status();
}

Result<SparseDecodeCall> Work::SparseCall(const Incoming& from, std::span<const std::byte> code,
                                          void* values) {
  const Sparse& sparse = *from.coding->sparse;
  Result<std::byte*> workspace =
      scratch_.Take(context_.kernels.sparse_decode_workspace_bytes(sparse, from.count));
  if (!workspace.ok()) return workspace.status();
  return SparseDecodeCall{.codec = sparse,
                          .dtype = from.dtype,
                          .code = code.data(),
                          .code_bytes = std::ssize(code),
                          .values = values,
                          .count = from.count,
                          .status = from.sparse_verdict,
                          .workspace = *workspace};
}

Status Work::DecodePacked(const Incoming& from, DType dtype, int64_t count, const void* ref,
                          void* values) {
  return from.coding->nvcomp ? DecodeNvcomp(from, dtype, count, values)
                             : DecodeLossless(from, dtype, count, ref, values);
}

Status Work::DecodeNvcomp(const Incoming& from, DType dtype, int64_t count, void* values) {
  const nvcomp::Spec& spec = *from.coding->nvcomp;
  const Result<int64_t> bytes =
      context_.kernels.nvcomp_decode_workspace_bytes(spec, dtype, values, count);
  if (!bytes.ok()) return bytes.status();
  Result<std::byte*> workspace = scratch_.Take(*bytes);
  if (!workspace.ok()) return workspace.status();
  return context_.kernels.nvcomp_decode({.spec = spec,
                                         .dtype = dtype,
                                         .code = from.at,
                                         .code_bytes = std::ssize(from.code),
                                         .values = values,
                                         .count = count,
                                         .status = from.verdict,
                                         .workspace = *workspace},
                                        stream_);
}

Status Work::DecodeLossless(const Incoming& from, DType dtype, int64_t count, const void* ref,
                            void* values) {
  const auto [layout, words_each] = lossless::LayoutOf(dtype);
  const int64_t words = count * words_each;
  if (from.code.empty()) {   // an encoding of nothing
    return context_.Check(context_.api.SetZero(from.verdict, sizeof(int32_t), stream_),
                          "clearing memory");
  }
  Result<std::byte*> workspace =
      scratch_.Take(context_.kernels.lossless_decode_workspace_bytes(layout, words));
  if (!workspace.ok()) return workspace.status();
  return context_.Check(context_.kernels.lossless_decode({.layout = layout,
                                                          .words = words,
                                                          .payload = from.at,
                                                          .payload_bytes = std::ssize(from.code),
                                                          .payload_size = nullptr,
                                                          .ref = ref,
                                                          .dst = values,
                                                          .status = from.verdict,
                                                          .workspace = *workspace},
                                                         stream_),
                        "decoding with 'lossless'");
}

Result<std::span<const std::byte>> Work::LossyCode(const Incoming& from) {
  const Coding& coding = *from.coding;
  if (!coding.packs()) return std::span(from.at, from.code.size());
  const int64_t bytes = coding.LossyBytes(from.dtype, from.count);
  Result<std::byte*> memory = scratch_.Take(bytes);
  if (!memory.ok()) return memory.status();
  const Scratch::Place place = scratch_.place();
  Status status =
      DecodePacked(from, coding.between, bytes / SizeBytes(coding.between), nullptr, *memory);
  if (!status.ok()) return status;
  scratch_.GoTo(place);
  return std::span<const std::byte>(*memory, static_cast<size_t>(bytes));
}

Result<const std::byte*> Work::Decoded(const Incoming& from) {
  if (from.coding->raw()) return from.at;
  Result<std::byte*> memory = scratch_.Take(from.count * SizeBytes(from.dtype));
  if (!memory.ok()) return memory.status();
  const Scratch::Place place = scratch_.place();
  if (Status status = DecodeTo(from, nullptr, *memory); !status.ok()) return status;
  scratch_.GoTo(place);
  return static_cast<const std::byte*>(*memory);
}

Status Work::Merge(ReduceOp op, int64_t divisor, std::span<const Device::MergeRun> runs) {
  std::vector<Incoming> codes;
  std::vector<size_t> first;   // of each run's codes
  for (const Device::MergeRun& run : runs) {
    first.push_back(codes.size());
    if (Status status = CheckReducible(run.dtype, op, false); !status.ok()) return status;
    for (const MergeSource& source : run.sources) {
      if (source.values != nullptr) continue;
      Status status = Expect(run.codec, run.dtype, run.count, source.code, &codes);
      if (!status.ok()) return status;
    }
  }
  first.push_back(codes.size());
  if (Status status = Fetch(&codes); !status.ok()) return status;
  const Scratch::Place place = scratch_.place();
  for (size_t i = 0; i < runs.size(); ++i) {
    scratch_.GoTo(place);
    Status status = MergeOne(runs[i], op, divisor,
                             std::span(codes).subspan(first[i], first[i + 1] - first[i]));
    if (!status.ok()) return status;
  }
  return FetchVerdicts();
}

Status Work::MergeOne(const Device::MergeRun& run, ReduceOp op, int64_t divisor,
                      std::span<const Incoming> codes) {
  const bool lossy = !codes.empty() && codes[0].coding->lossy();
  if (lossy && IsHalf(run.dtype)) return MergeWide(run, op, divisor, codes);
  const bool pair =
      run.codec != nullptr && codes.size() == 1 && run.sources.size() == 2 && !IsHalf(run.dtype);
  const void* const beside =
      pair ? run.sources[run.sources[0].values == nullptr ? 1 : 0].values : nullptr;
  // The values are float32, as are all that a lossy coding has but halves.
  if (pair && lossy && op == ReduceOp::kSum && beside == run.to) {
    Status status = AddDecoded(codes[0], reinterpret_cast<float*>(run.to));
    if (!status.ok() || divisor <= 1) return status;
    return ReduceTo(run, op, divisor, std::span(&beside, 1));
  }
  std::vector<const void*> sources;
  for (const MergeSource& source : run.sources) {
    sources.push_back(source.values);
    if (source.values != nullptr) continue;
    Result<const std::byte*> values = Decoded(codes.front());
    if (!values.ok()) return values.status();
    codes = codes.subspan(1);
    sources.back() = *values;
  }
  // Of two, the values come first.
  if (pair && run.sources[0].values == nullptr) std::swap(sources[0], sources[1]);
  return ReduceTo(run, op, divisor, sources);
}

Status Work::ReduceTo(const Device::MergeRun& run, ReduceOp op, int64_t divisor,
                      std::span<const void* const> sources) {
  if (run.count == 0) return Status::Ok();
  float* accumulator = nullptr;
  const bool in_place = std::find(sources.begin(), sources.end(), run.to) != sources.end();
  if (std::ssize(sources) > context_.kernels.max_reduce_sources() &&
      (in_place || IsHalf(run.dtype))) {
    const int64_t each = std::max<int64_t>(sizeof(float), SizeBytes(run.dtype));
    Result<std::byte*> memory = scratch_.Take(run.count * each);
    if (!memory.ok()) return memory.status();
    accumulator = reinterpret_cast<float*>(*memory);
  }
  return context_.kernels.reduce(run.dtype, op, run.to, sources, run.count, divisor, accumulator,
                                 stream_);
}

Status Work::FillFloats(float* to, float value, int64_t count) {
  Device::FillRun run{reinterpret_cast<std::byte*>(to), count, sizeof(float), {}};
  std::memcpy(run.element.data(), &value, sizeof(value));
  return Fill(std::span(&run, 1));
}

// As codec/part.cc does: of a half type decoded and merged in float, rounded once.
Status Work::MergeWide(const Device::MergeRun& run, ReduceOp op, int64_t divisor,
                       std::span<const Incoming> codes) {
  if (run.count == 0) {   // what has come is looked at all the same
    for (const Incoming& code : codes) {
      const Result<std::span<const std::byte>> seen = LossyCode(code);
      if (!seen.ok()) return seen.status();
    }
    return Status::Ok();
  }
  Result<std::byte*> memory = scratch_.Take(run.count * static_cast<int64_t>(sizeof(float)));
  if (!memory.ok()) return memory.status();
  auto* const acc = reinterpret_cast<float*>(*memory);
  float identity = 0;
  FillIdentity(DType::kFloat32, op, &identity, 1);
  if (Status status = FillFloats(acc, identity, run.count); !status.ok()) return status;
  const Scratch::Place place = scratch_.place();
  for (const MergeSource& source : run.sources) {
    scratch_.GoTo(place);
    Status status;
    if (source.values != nullptr) {
      status = context_.kernels.merge_values(run.dtype, source.values, op, DType::kFloat32, acc,
                                             run.count, stream_);
    } else {
      status = AddToWide(codes.front(), op, acc);
      codes = codes.subspan(1);
    }
    if (!status.ok()) return status;
  }
  return context_.kernels.round_to_half(run.dtype, acc, divisor, run.to, run.count, stream_);
}

Status Work::AddToWide(const Incoming& from, ReduceOp op, float* acc) {
  if (op == ReduceOp::kSum) return AddDecoded(from, acc);
  // -0 and a value are that value.
  Result<std::byte*> memory = scratch_.Take(from.count * static_cast<int64_t>(sizeof(float)));
  if (!memory.ok()) return memory.status();
  auto* const values = reinterpret_cast<float*>(*memory);
  if (Status status = FillFloats(values, -0.0f, from.count); !status.ok()) return status;
  if (Status status = AddDecoded(from, values); !status.ok()) return status;
  return context_.kernels.merge_values(DType::kFloat32, values, op, DType::kFloat32, acc,
                                       from.count, stream_);
}

Status Work::Residual(int64_t times, std::span<const Device::ResidualRun> runs) {
  std::vector<Incoming> codes;
  for (const Device::ResidualRun& run : runs) {
    Status status = Expect(run.codec, run.dtype, run.count, run.code, &codes);
    if (!status.ok()) return status;
  }
  if (Status status = Fetch(&codes); !status.ok()) return status;
  const Scratch::Place place = scratch_.place();
  for (size_t i = 0; i < runs.size(); ++i) {
    const Device::ResidualRun& run = runs[i];
    scratch_.GoTo(place);
    Result<const std::byte*> decoded = Decoded(codes[i]);
    if (!decoded.ok()) return decoded.status();
    if (run.count == 0) continue;
    Status status = context_.kernels.add_lost(run.dtype, run.to, run.more ? run.to : nullptr,
                                              run.values, *decoded, run.count, times, stream_);
    if (!status.ok()) return status;
  }
  return FetchVerdicts();
}

}  // namespace jaxccomp::cuda
