#include "cuda/host/work.h"

#include <algorithm>
#include <utility>

namespace jaxccomp::cuda {
namespace {

// Smaller copies than this go together in one kernel.
constexpr int64_t kSmallCopyBytes = 64 << 10;
constexpr int64_t kVerdictBytes = sizeof(int32_t);

// How many of its stages may find that what has come is no code.
int Verdicts(const Coding& coding) { return coding.packs() + coding.sparse.has_value(); }

}  // namespace

DeviceContext::DeviceContext(CudaApi* a, const KernelTable* k, std::string n)
    : api(*a), kernels(*k), name(std::move(n)), words(a), shared(a, name) {}

const Coding* DeviceContext::Find(const Codec* codec) {
  static constexpr Coding kRaw = {};
  if (codec == nullptr) return &kRaw;
  const std::string& spec = codec->traits().spec;
  std::lock_guard lock(mutex_);
  auto known = codings_.find(spec);
  if (known == codings_.end()) known = codings_.emplace(spec, FindCoding(*codec)).first;
  return known->second ? &*known->second : nullptr;
}

Status DeviceContext::Check(int error, const char* what) const {
  if (error == CudaApi::kSuccess) return Status::Ok();
  return {Code::kUnavailable, name + ": " + what + " failed: " + api.Describe(error)};
}

Work::Work(DeviceContext* context, CUstream_st* stream, Scratch* scratch)
    : context_(*context), stream_(stream), scratch_(*scratch) {
  scratch_.Restart();
}

Work::~Work() {
  if (words_ != nullptr) context_.words.Give(words_, words_count_);
}

Status Work::TakeWords(size_t count) {
  int error = CudaApi::kSuccess;
  words_ = context_.words.Take(count, &error);
  if (words_ == nullptr) {
    return OutOfMemory(context_.api, context_.name, "pinned memory for what a computation finds out",
                       static_cast<int64_t>(count * sizeof(uint32_t)), error);
  }
  words_count_ = count;
  return Status::Ok();
}

Status Work::Outcome() const {
  for (size_t i = 0; i < expected_.size(); ++i) {
    if (words_[i] != expected_[i]) {
      return {Code::kFailedPrecondition,
              context_.name + ": the reference of a code is another one than its sender's"};
    }
  }
  for (size_t i = 0; i < judged_.size(); ++i) {
    if (words_[i] != 0) {
      return {Code::kDataLoss, "codec '" + judged_[i] + "' on " + context_.name +
                                   ": bytes arrived that are not an encoding of so many values"};
    }
  }
  return Status::Ok();
}

Status Work::CopyOne(void* to, const void* from, int64_t bytes) {
  if (bytes == 0 || to == from) return Status::Ok();
  return context_.Check(context_.api.Copy(to, from, bytes, stream_), "a copy");
}

Status Work::Copy(std::span<const Device::CopyRun> runs) {
  std::vector<Device::CopyRun> small;
  for (const Device::CopyRun& run : runs) {
    if (run.bytes > 0 && run.bytes <= kSmallCopyBytes) {
      small.push_back(run);
      continue;
    }
    if (Status status = CopyOne(run.to, run.from, run.bytes); !status.ok()) return status;
  }
  if (small.size() == 1) return CopyOne(small[0].to, small[0].from, small[0].bytes);
  return small.empty() ? Status::Ok() : context_.kernels.copy_runs(small, stream_);
}

Status Work::Fill(std::span<const Device::FillRun> runs) {
  for (const Device::FillRun& run : runs) {
    if (run.count == 0) continue;
    const auto element = std::span(run.element).first(static_cast<size_t>(run.element_bytes));
    const bool zero = std::all_of(element.begin(), element.end(),
                                  [](std::byte b) { return b == std::byte{0}; });
    Status status =
        zero ? context_.Check(context_.api.SetZero(run.to, run.count * run.element_bytes, stream_),
                              "clearing memory")
             : context_.kernels.fill(run, stream_);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

Status Work::Expect(const Codec* codec, DType dtype, int64_t count, std::span<const std::byte> code,
                    std::vector<Incoming>* incoming) {
  const Coding* const coding = context_.Find(codec);
  const std::string spec = codec == nullptr ? "none" : codec->traits().spec;
  if (coding == nullptr) {
    return {Code::kUnimplemented, "codec '" + spec + "' does not run on " + context_.name};
  }
  if (Status status = coding->CheckDType(dtype); !status.ok()) return status;
  const int64_t raw_bytes = count * SizeBytes(dtype);
  const int64_t least = codec == nullptr ? raw_bytes : codec->MinEncodedBytes(dtype, count);
  const int64_t most = codec == nullptr ? raw_bytes : codec->MaxEncodedBytes(dtype, count);
  if (std::ssize(code) < least || std::ssize(code) > most) {
    return {Code::kDataLoss, "codec '" + spec + "' on " + context_.name + ": " +
                                 std::to_string(code.size()) + " bytes arrived where " +
                                 std::to_string(count) + " values of " +
                                 std::string(Name(dtype)) + " take " + std::to_string(least) +
                                 (least == most ? "" : " to " + std::to_string(most))};
  }
  incoming->push_back({codec, coding, dtype, count, code});
  return Status::Ok();
}

Status Work::Fetch(std::vector<Incoming>* incoming) {
  std::vector<Device::CopyRun> runs;
  for (Incoming& one : *incoming) {
    for (int i = Verdicts(*one.coding); i > 0; --i) judged_.push_back(one.codec->traits().spec);
    if (context_.shared.CanBeReadAt(one.code.data())) {
      one.at = one.code.data();
      continue;
    }
    Result<std::byte*> at = scratch_.Take(std::ssize(one.code));
    if (!at.ok()) return at.status();
    one.at = *at;
    runs.push_back({*at, one.code.data(), std::ssize(one.code)});
  }
  if (Status status = Copy(runs); !status.ok() || judged_.empty()) return status;
  if (Status status = TakeWords(judged_.size()); !status.ok()) return status;
  Result<std::byte*> verdicts = scratch_.Take(std::ssize(judged_) * kVerdictBytes);
  if (!verdicts.ok()) return verdicts.status();
  verdicts_ = reinterpret_cast<int32_t*>(*verdicts);
  int32_t* next = verdicts_;
  bool sparse = false;
  for (Incoming& one : *incoming) {
    if (one.coding->packs()) one.verdict = next++;
    if (one.coding->sparse) one.sparse_verdict = next++;
    sparse |= one.coding->sparse.has_value();
  }
  // Sparse codes are good until found bad; others get their verdict in any case.
  if (!sparse) return Status::Ok();
  return context_.Check(
      context_.api.SetZero(verdicts_, std::ssize(judged_) * kVerdictBytes, stream_),
      "clearing memory");
}

Status Work::FetchVerdicts() {
  return CopyOne(words_, verdicts_, std::ssize(judged_) * kVerdictBytes);
}

}  // namespace jaxccomp::cuda
