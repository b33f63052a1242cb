// Two codecs in a row: the second codes the bytes that the first one made.
//
// Wire format: the second's encoding of the first's, taken as an array of what the first one's
// bytes are (bfloat16 for "bf16"); before it, unless the first is of fixed rate, the number of the
// first's bytes (8, little-endian).
#pragma once

#include <memory>

#include "codec/codec.h"

namespace jaxccomp {

// `second` is lossless.
std::unique_ptr<const Codec> MakePipeline(std::shared_ptr<const Codec> first,
                                          std::shared_ptr<const Codec> second);

}  // namespace jaxccomp
