// The FFI handlers of fixed-rate codecs on the platform CUDA, for the traced plane (backend="xla"). The handlers only
// launch kernels on XLA's stream, so XLA may capture them in a command buffer.
//
//   jaxccomp_encode      values [..., n], for stochastic codecs also keys u32 [..., 2] -> codes u8 [..., bytes]
//   jaxccomp_decode      codes u8 [..., bytes] -> values [..., n]
//   jaxccomp_decode_sum  codes u8 [..., rows, bytes] -> sums of the rows' values [..., n]
//
// Attributes: `codec`, a spec of one stage; `dtype`, JAX's name of the encoded values' dtype. Decoded values have that
// dtype or float32.
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
