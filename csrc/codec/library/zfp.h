// The row "zfp": the floating-point compressor of that name, by libzfp where it is found.
#pragma once

#include "codec/registry.h"

namespace jaxccomp::library {

extern const CodecInfo kZfpRow;

}  // namespace jaxccomp::library
