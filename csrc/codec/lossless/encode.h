// Values to the chunk payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/lossless/kernels.h"
#include "codec/lossless/layout.h"
#include "codec/lossless/workspace.h"

namespace jaxccomp::lossless {

// What `dst` must hold to encode `words` words (not negative, and their bytes can be counted).
// The encoding itself takes at most the chunk header, a byte per segment and the words.
int64_t EncodeBoundBytes(Layout layout, int64_t words);

// What no encoding is shorter than: a header per segment and an index entry per block of the
// planes, all of which are constant.
int64_t LeastEncodedBytes(Layout layout, int64_t words);

// Returns the bytes written. `dst` holds EncodeBoundBytes; what follows the encoding in it is
// overwritten too. `ref` is null or as large as `src`.
int64_t Encode(const Kernels& kernels, Layout layout, const void* src, const void* ref,
               int64_t words, std::byte* dst, Workspace& workspace);

}  // namespace jaxccomp::lossless
