// The table rows of each family of codecs.
#pragma once

#include <span>

#include "codec/registry.h"

namespace jaxccomp {

std::span<const CodecInfo> RawRows();
std::span<const CodecInfo> LosslessRows();
std::span<const CodecInfo> DeltaRows();
std::span<const CodecInfo> CastRows();
std::span<const CodecInfo> QuantizeRows();
std::span<const CodecInfo> SignRows();
std::span<const CodecInfo> SparseRows();
std::span<const CodecInfo> LibraryRows();
std::span<const CodecInfo> NvcompRows();

}  // namespace jaxccomp
