// The row "randomk": values at random places that both sides draw.
#pragma once

#include "codec/registry.h"

namespace jaxccomp::sparse {

extern const CodecInfo kRandomKRow;

}  // namespace jaxccomp::sparse
