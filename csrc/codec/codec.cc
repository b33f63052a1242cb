#include "codec/codec.h"

#include <string>
#include <vector>

#include "codec/cast/bf16.h"
#include "codec/lossless/lossless.h"
#include "codec/raw.h"

namespace jaxccomp {
namespace {

// The codecs on offer, in the order in which they are listed. A new one is a row here.
std::span<const Codec* const> Codecs() {
  static const Codec* const codecs[] = {
      &RawCodec(),
      &Bf16Codec(),
      &LosslessCodec(),
  };
  return codecs;
}

}  // namespace

Result<const Codec*> LookupCodec(std::string_view spec) {
  std::string valid;
  for (const Codec* codec : Codecs()) {
    const std::string_view name = codec->traits().name;
    if (name == spec) return codec;
    valid.append(valid.empty() ? "'" : ", '").append(name).append("'");
  }
  return Status(Code::kInvalidArgument,
                "unknown codec '" + std::string(spec) + "': valid are " + valid);
}

std::span<const CodecTraits> CodecTable() {
  static const std::vector<CodecTraits> table = [] {
    std::vector<CodecTraits> rows;
    for (const Codec* codec : Codecs()) rows.push_back(codec->traits());
    return rows;
  }();
  return table;
}

}  // namespace jaxccomp
