// The row "lz4": LZ4 blocks, by liblz4 where it is found.
#pragma once

#include "codec/registry.h"

namespace jaxccomp::library {

extern const CodecInfo kLz4Row;

}  // namespace jaxccomp::library
