// Two codecs in a row: the second encodes the first's output.
//
// Wire format: unless the first codec has a fixed rate, its encoded bytes as a number (8 bytes,
// little-endian); then the second's encoding of the first's output, as an array of the first's
// EncodedDType (bfloat16 for "bf16").
#pragma once

#include <memory>

#include "codec/codec.h"

namespace jaxccomp {

// `second` must be lossless.
std::unique_ptr<const Codec> MakePipeline(std::shared_ptr<const Codec> first,
                                          std::shared_ptr<const Codec> second);

}  // namespace jaxccomp
