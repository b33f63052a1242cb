#include "codec/lossless/lossless.h"

#include <limits>

#include "codec/lossless/decode.h"
#include "codec/lossless/encode.h"
#include "codec/lossless/kernels.h"
#include "codec/lossless/workspace.h"
#include "codec/sizes.h"

namespace jaxccomp {

struct LosslessWorkspace::Memory : lossless::Workspace {};

LosslessWorkspace::LosslessWorkspace() : memory_(std::make_unique<Memory>()) {}
LosslessWorkspace::~LosslessWorkspace() = default;

namespace {

using lossless::LayoutOf;

constexpr std::string_view kName = "lossless";

int64_t MostEncodedBytes(DType dtype, int64_t count) {
  // Below this, no sum or product in the bound overflows.
  constexpr int64_t kMostBytes = std::numeric_limits<int64_t>::max() / 4;
  const int64_t bytes = CheckedBytes(count, SizeBytes(dtype));
  if (bytes < 0 || bytes > kMostBytes) return -1;
  return lossless::EncodeBoundBytes(LayoutOf(dtype).layout, count * LayoutOf(dtype).words);
}

// One per thread: a chunk is coded on the thread that calls.
LosslessWorkspace& ThreadWorkspace() {
  static thread_local LosslessWorkspace workspace;
  return workspace;
}

class Lossless final : public Codec {
 public:
  const CodecTraits& traits() const override {
    static constexpr CodecTraits kTraits = {
        .name = kName,
        .description = "bit for bit: exponents and other predictable bytes in short codes",
        .lossless = true,
        .fixed_rate = false,
        .relative_error = 0};
    return kTraits;
  }

  bool Supports(DType) const override { return true; }

  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    return MostEncodedBytes(dtype, count);
  }

  Result<int64_t> Encode(DType dtype, const void* src, int64_t count,
                         std::span<std::byte> dst) const override {
    return LosslessEncode(dtype, src, nullptr, count, dst, ThreadWorkspace());
  }

  Status Decode(DType dtype, std::span<const std::byte> src, void* dst,
                int64_t count) const override {
    return LosslessDecode(dtype, src, nullptr, dst, count, ThreadWorkspace());
  }
};

}  // namespace

const Codec& LosslessCodec() {
  static const Lossless codec;
  return codec;
}

Result<int64_t> LosslessEncode(DType dtype, const void* src, const void* ref, int64_t count,
                               std::span<std::byte> dst, LosslessWorkspace& workspace) {
  const int64_t most = MostEncodedBytes(dtype, count);
  if (Status status = CheckEncode(kName, dtype, most < 0 ? -1 : count, most, dst); !status.ok()) {
    return status;
  }
  return lossless::Encode(lossless::BestKernels(), LayoutOf(dtype).layout, src, ref,
                          count * LayoutOf(dtype).words, dst.data(), workspace.memory());
}

Status LosslessDecode(DType dtype, std::span<const std::byte> src, const void* ref, void* dst,
                      int64_t count, LosslessWorkspace& workspace) {
  if (MostEncodedBytes(dtype, count) < 0) {
    return {Code::kInvalidArgument,
            "codec 'lossless': " + std::to_string(count) + " is not a possible count of values"};
  }
  lossless::Decoder decoder(lossless::BestKernels(), workspace.memory());
  Status status = decoder.Open(LayoutOf(dtype).layout, src, count * LayoutOf(dtype).words,
                               ref != nullptr);
  auto* out = static_cast<std::byte*>(dst);
  auto* from = static_cast<const std::byte*>(ref);
  const int64_t word_bytes = Info(LayoutOf(dtype).layout).word_bytes;
  while (status.ok() && decoder.next_words() > 0) {
    const int64_t bytes = decoder.next_words() * word_bytes;
    status = decoder.Next(out, from);
    out += bytes;
    if (from != nullptr) from += bytes;
  }
  return status;
}

}  // namespace jaxccomp
