#include "decode_one.h"

#include <span>
#include <vector>

#include "codec/frame.h"
#include "codec/registry.h"

namespace jaxccomp::testing {
namespace {

// Several segments of "lossless", or several blocks of any other codec.
constexpr int64_t kMaxValueBytes = 1 << 20;

// Every codec alone and before a second stage.
const std::vector<std::shared_ptr<const Codec>>& Codecs() {
  static const auto codecs = [] {
    std::vector<std::shared_ptr<const Codec>> found;
    for (const CodecInfo* row : CodecTable()) {
      for (const std::string& spec : {std::string(row->name), std::string(row->name) + "|lossless"}) {
        if (auto codec = LookupCodec(spec); codec.ok()) found.push_back(*codec);
      }
    }
    return found;
  }();
  return codecs;
}

// Constant delta bases with many exponents: as bfloat16 they resemble weights.
std::vector<std::byte> References(size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    const auto hash = static_cast<uint32_t>(i / 2 + 1) * 2654435761u >> 8;
    const uint32_t word = (hash & 0x807f) | (110 + (hash >> 16 & 15)) << 7;
    made[i] = static_cast<std::byte>(i % 2 == 0 ? word : word >> 8);
  }
  return made;
}

void DecodeFrameBytes(std::span<const std::byte> bytes) {
  const auto header = ReadFrameHeader(bytes);
  if (!header.ok() || header->value_bytes() > kMaxValueBytes) return;
  Workspace workspace;
  std::vector<std::byte> values(static_cast<size_t>(header->value_bytes()));
  const std::vector<std::byte> ref(header->delta ? values.size() : 0);
  (void)DecodeFrame(*header, bytes, header->delta ? ref.data() : nullptr, values.data(), workspace);
}

void DecodeChunk(const uint8_t* choice, std::span<const std::byte> bytes) {
  const Codec& codec = *Codecs()[choice[0] % Codecs().size()];
  const auto dtype = static_cast<DType>(choice[1] % kDTypeCount);
  if (!codec.Supports(dtype)) return;
  // Small counts around a block's size, and large ones.
  const int64_t count = choice[2] < 192 ? choice[2] : (choice[2] - 191) * 1031;
  Workspace workspace;
  CodingContext context(workspace);
  std::vector<std::byte> values(static_cast<size_t>(count * SizeBytes(dtype)));
  (void)codec.Decode(dtype, bytes, values.data(), count, context);
  (void)codec.DecodeMerge(dtype, bytes, ReduceOp::kSum, dtype, values.data(), count, context);
  const std::vector<std::byte> ref = References(values.size());
  context.ref = ref.data();
  (void)codec.Decode(dtype, bytes, values.data(), count, context);
}

}  // namespace

void DecodeOne(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  if (data[0] == 0) {
    DecodeFrameBytes({bytes + 1, size - 1});
  } else if (size >= 4) {
    DecodeChunk(data + 1, {bytes + 4, size - 4});
  }
}

}  // namespace jaxccomp::testing
