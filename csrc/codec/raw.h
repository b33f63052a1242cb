// The codec "raw": the bytes as they are.
#pragma once

#include "codec/codec.h"

namespace jaxccomp {

const Codec& RawCodec();

}  // namespace jaxccomp
