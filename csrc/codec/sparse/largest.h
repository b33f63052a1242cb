// The rows "topk" and "dgc": the largest values and where they are.
#pragma once

#include "codec/registry.h"

namespace jaxccomp::sparse {

extern const CodecInfo kTopKRow;
extern const CodecInfo kDgcRow;

}  // namespace jaxccomp::sparse
