// Decodes arbitrary bytes with all decoders. The fuzzer calls this, and the tests call it with the
// inputs of the corpus.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxccomp::testing {

// The first byte is the kind of input: 0, a frame; otherwise a chunk, with codec, dtype and count
// in the next three bytes.
void DecodeOne(const uint8_t* data, size_t size);

}  // namespace jaxccomp::testing
