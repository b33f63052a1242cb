// Decodes bytes that may be anything, in every way that there is: what fuzzing calls, and what the
// tests call with the inputs that fuzzing found worth keeping.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxccomp::testing {

// The first byte says how: 0, a frame; else a chunk, of a codec, dtype and count that the next
// three bytes choose.
void DecodeOne(const uint8_t* data, size_t size);

}  // namespace jaxccomp::testing
