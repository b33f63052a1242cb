// Work: encoding, and the checksums of references.

#include <cstdint>
#include <cstring>

#include "codec/lossless/layout.h"
#include "cuda/host/work.h"

namespace jaxccomp::cuda {
namespace {

constexpr uint32_t kChecksumOfNothing = 0;
constexpr int64_t kMostBlocksToHost = 32;

}  // namespace

Status Work::Encode(std::span<const Device::EncodeRun> runs) {
  std::vector<const Coding*> codings;
  std::vector<Device::CopyRun> out;   // to the codes' places
  std::vector<std::byte*> lossy;      // where the only stage codes to; null: right there
  for (const Device::EncodeRun& run : runs) {
    const Coding* const coding = context_.Find(run.codec);
    if (coding == nullptr) {
      return {Code::kUnimplemented,
              "codec '" + run.codec->traits().spec + "' does not run on " + context_.name};
    }
    if (Status status = coding->CheckDType(run.dtype); !status.ok()) return status;
    const int64_t raw_bytes = run.count * SizeBytes(run.dtype);
    const int64_t most =
        run.codec == nullptr ? raw_bytes : run.codec->MaxEncodedBytes(run.dtype, run.count);
    if (std::ssize(run.code) < most) {
      return {Code::kInvalidArgument, context_.name + ": a code of up to " + std::to_string(most) +
                                          " bytes was given room for " +
                                          std::to_string(run.code.size())};
    }
    codings.push_back(coding);
    lossy.push_back(nullptr);
    if (coding->packs()) continue;
    *run.code_bytes = coding->raw() ? raw_bytes : coding->LossyBytes(run.dtype, run.count);
    if (coding->raw() && run.ref == nullptr) {
      out.push_back({run.code.data(), run.values, raw_bytes});
      continue;
    }
    if (context_.shared.CanBeReadAt(run.code.data())) {
      lossy.back() = run.code.data();
      continue;
    }
    Result<std::byte*> memory = scratch_.Take(*run.code_bytes);
    if (!memory.ok()) return memory.status();
    lossy.back() = *memory;
    out.push_back({run.code.data(), *memory, *run.code_bytes});
  }
  const Scratch::Place place = scratch_.place();
  for (size_t i = 0; i < runs.size(); ++i) {
    scratch_.GoTo(place);
    Status status = EncodeOne(runs[i], *codings[i], lossy[i]);
    if (!status.ok()) return status;
  }
  return Copy(out);
}

Status Work::EncodeOne(const Device::EncodeRun& run, const Coding& coding, std::byte* lossy) {
  const void* values = run.values;
  const void* ref = run.ref;
  if (ref != nullptr) {
    if (Status status = PutChecksum(run); !status.ok()) return status;
  }
  if (ref != nullptr && !coding.takes_reference()) {
    std::byte* difference = lossy;
    if (!coding.raw()) {
      Result<std::byte*> memory = scratch_.Take(run.count * SizeBytes(run.dtype));
      if (!memory.ok()) return memory.status();
      difference = *memory;
    }
    if (run.count > 0) {
      Status status = context_.kernels.subtract(run.dtype, coding.exact(), values, ref, difference,
                                                run.count, stream_);
      if (!status.ok()) return status;
    }
    values = difference;
    ref = nullptr;
  }
  if (coding.raw()) return Status::Ok();
  if (!coding.lossy()) return EncodePacked(coding, run.dtype, run.count, values, ref, run);
  const int64_t bytes = coding.LossyBytes(run.dtype, run.count);
  if (coding.packs()) {
    Result<std::byte*> memory = scratch_.Take(bytes);
    if (!memory.ok()) return memory.status();
    lossy = *memory;
  }
  Status status = EncodeLossy(coding, values, run, lossy);
  if (!status.ok() || !coding.packs()) return status;
  return EncodePacked(coding, coding.between, bytes / SizeBytes(coding.between), lossy, nullptr,
                      run);
}

Status Work::EncodeLossy(const Coding& coding, const void* values, const Device::EncodeRun& run,
                         std::byte* code) {
  if (coding.fixed) {
    return context_.kernels.encode(*coding.fixed, run.dtype, values, run.count, code, run.key,
                                   run.first, stream_);
  }
  Result<std::byte*> workspace = scratch_.Take(
      context_.kernels.sparse_encode_workspace_bytes(*coding.sparse, run.dtype, run.count));
  if (!workspace.ok()) return workspace.status();
  return context_.kernels.sparse_encode(
      {.codec = *coding.sparse,
       .dtype = run.dtype,
       .values = values,
       .count = run.count,
       .code = code,
       .size = run.codec->traits().fixed_rate || coding.packs() ? nullptr : run.code_bytes,
       .key = run.key,
       .first = run.first,
       .workspace = *workspace},
      stream_);
}

// What has a fixed rate is made in the device's memory and copied by its copy engines; other codecs write
// their codes themselves. PCIe takes what a few blocks of threads make; more would only wait there, and keep
// multiprocessors from the program for as long as the transfer takes.
int64_t Work::MostBlocksTo(const std::byte* code) const {
  return context_.shared.CanBeReadAt(code) ? 0 : kMostBlocksToHost;
}

Status Work::EncodePacked(const Coding& coding, DType dtype, int64_t count, const void* values,
                          const void* ref, const Device::EncodeRun& run) {
  return coding.nvcomp ? EncodeNvcomp(*coding.nvcomp, dtype, count, values, run)
                       : EncodeLossless(dtype, count, values, ref, run);
}

Status Work::EncodeNvcomp(const nvcomp::Spec& spec, DType dtype, int64_t count, const void* values,
                          const Device::EncodeRun& run) {
  const Result<int64_t> bytes =
      context_.kernels.nvcomp_encode_workspace_bytes(spec, dtype, values, count);
  if (!bytes.ok()) return bytes.status();
  Result<std::byte*> workspace = scratch_.Take(*bytes);
  if (!workspace.ok()) return workspace.status();
  return context_.kernels.nvcomp_encode({.spec = spec,
                                         .dtype = dtype,
                                         .values = values,
                                         .count = count,
                                         .code = run.code.data(),
                                         .size = run.code_bytes,
                                         .workspace = *workspace,
                                         .most_blocks = MostBlocksTo(run.code.data())},
                                        stream_);
}

Status Work::EncodeLossless(DType dtype, int64_t count, const void* values, const void* ref,
                            const Device::EncodeRun& run) {
  const auto [layout, words_each] = lossless::LayoutOf(dtype);
  const int64_t words = count * words_each;
  Result<std::byte*> size = scratch_.Take(sizeof(int64_t));
  if (!size.ok()) return size.status();
  Result<std::byte*> workspace =
      scratch_.Take(context_.kernels.lossless_encode_workspace_bytes(layout, words));
  if (!workspace.ok()) return workspace.status();
  return context_.Check(
      context_.kernels.lossless_encode({.layout = layout,
                                        .words = words,
                                        .src = values,
                                        .ref = ref,
                                        .dst = run.code.data(),
                                        .size = reinterpret_cast<int64_t*>(*size),
                                        .host_size = run.code_bytes,
                                        .workspace = *workspace,
                                        .most_blocks = MostBlocksTo(run.code.data())},
                                       stream_),
      "encoding with 'lossless'");
}

Status Work::ChecksumTo(const void* values, int64_t bytes, uint32_t* checksum) {
  Result<std::byte*> workspace = scratch_.Take(context_.kernels.checksum_workspace_bytes(bytes));
  if (!workspace.ok()) return workspace.status();
  return context_.kernels.checksum(values, bytes, checksum, *workspace, stream_);
}

// Made on the device and copied, as its place is not that of a word.
Status Work::PutChecksum(const Device::EncodeRun& run) {
  if (run.count == 0) {
    std::memcpy(run.ref_checksum, &kChecksumOfNothing, sizeof(kChecksumOfNothing));
    return Status::Ok();
  }
  Result<std::byte*> word = scratch_.Take(sizeof(uint32_t));
  if (!word.ok()) return word.status();
  Status status = ChecksumTo(run.ref, run.count * SizeBytes(run.dtype),
                             reinterpret_cast<uint32_t*>(*word));
  return status.ok() ? CopyOne(run.ref_checksum, *word, sizeof(uint32_t)) : status;
}

Status Work::CheckReferences(std::span<const Device::DecodeRun> runs) {
  if (Status status = TakeWords(runs.size()); !status.ok()) return status;
  const Scratch::Place place = scratch_.place();
  for (size_t i = 0; i < runs.size(); ++i) {
    const Device::DecodeRun& run = runs[i];
    expected_.push_back(run.ref_checksum);
    words_[i] = run.ref == nullptr ? run.ref_checksum : kChecksumOfNothing;
    if (run.ref == nullptr || run.count == 0) continue;
    scratch_.GoTo(place);
    Status status = ChecksumTo(run.ref, run.count * SizeBytes(run.dtype), words_ + i);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace jaxccomp::cuda
