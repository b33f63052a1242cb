// The row "zstd": Zstandard (RFC 8878), by libzstd where it is found.
#pragma once

#include "codec/registry.h"

namespace jaxccomp::library {

extern const CodecInfo kZstdRow;

}  // namespace jaxccomp::library
