// Lossless codecs for values that XLA passes to MPI as bytes, without their type. The encoder encodes a sample as each
// of several types, and uses the type with the shortest code. An encoding is a byte with the number of the type, the
// code of the values, and the bytes after the last whole value, which are not encoded.
#pragma once

#include <memory>

#include "codec/codec.h"

namespace jaxccomp {

// `codec` is lossless and encodes values of all types.
std::shared_ptr<const Codec> MakeByteCodec(std::shared_ptr<const Codec> codec);

}  // namespace jaxccomp
