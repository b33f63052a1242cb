// The FFI handlers of codecs of a fixed rate, on the platform CUDA: what the traced plane encodes and
// decodes by. They only start kernels on XLA's stream, so XLA may capture them in a command buffer.
//
//   jaxccomp_encode      values [..., n], with random numbers also keys u32 [..., 2] -> u8 [..., bytes]
//   jaxccomp_decode      codes u8 [..., bytes] -> values [..., n]
//   jaxccomp_decode_sum  codes u8 [..., rows, bytes] -> sums of the rows' values [..., n]
//
// Attributes: `codec`, a spec of one stage; `dtype`, by JAX's name, of what was encoded. Results may be
// of that type or, of half types, float32.
#pragma once

#include <span>

#include "handlers/platform_handlers.h"

namespace jaxccomp {

struct CodecHandler {
  const char* name;
  XLA_FFI_Error* (*execute)(XLA_FFI_CallFrame* frame);
};

std::span<const CodecHandler> CodecHandlers();

}  // namespace jaxccomp
