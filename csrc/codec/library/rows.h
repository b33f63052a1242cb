// The table rows of codecs that use a library found at run time.
#pragma once

#include "codec/registry.h"

namespace jaxccomp::library {

extern const CodecInfo kZstdRow;   // Zstandard (RFC 8878), by libzstd
extern const CodecInfo kLz4Row;    // LZ4 blocks, by liblz4
extern const CodecInfo kZfpRow;    // zfp, a compressor of floats, by libzfp

}  // namespace jaxccomp::library
