// Lossless codecs for bytes of values whose type is not known: XLA passes all values but those that it reduces to MPI as
// bytes. The encoder finds the type for which a sample is shortest. An encoding is a byte, the number of that type, and
// the encoding of the values as that type; the bytes after the last whole value follow as they are.
#pragma once

#include <memory>

#include "codec/codec.h"

namespace jaxccomp {

// `codec` is lossless and encodes values of all types.
std::shared_ptr<const Codec> MakeByteCodec(std::shared_ptr<const Codec> codec);

}  // namespace jaxccomp
