// The encoder: values to chunk payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/lossless/kernels.h"
#include "codec/lossless/layout.h"
#include "codec/lossless/workspace.h"

namespace jaxccomp::lossless {

// The bytes that Encode needs in `dst` for `words` words (not negative; their bytes do not overflow).
// The encoding itself takes at most the chunk header, a byte per segment and the words.
int64_t EncodeBoundBytes(Layout layout, int64_t words);

// A lower bound of the encoding's bytes: all planes are constant, with a header per segment and an
// index entry per block.
int64_t MinEncodedBytes(Layout layout, int64_t words);

// Returns the bytes written. `dst` holds EncodeBoundBytes; bytes after the encoding may be
// overwritten. `ref` is null or as large as `src`.
int64_t Encode(const Kernels& kernels, Layout layout, const void* src, const void* ref,
               int64_t words, std::byte* dst, Workspace& workspace);

}  // namespace jaxccomp::lossless
