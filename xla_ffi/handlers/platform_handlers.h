// The FFI handlers to register with XLA.
#pragma once

#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace jaxccomp {

// The handlers and the state type of an XLA platform.
struct PlatformHandlers {
  XLA_FFI_Error* (*instantiate)(XLA_FFI_CallFrame* frame);
  XLA_FFI_Error* (*execute)(XLA_FFI_CallFrame* frame);
  xla::ffi::TypeId* type_id;              // of the state of a call site
  const xla::ffi::TypeInfo* type_info;
};

const PlatformHandlers& CpuHandlers();
const PlatformHandlers& CudaHandlers();

// On the CPU: a call whose first results are its first operands, in the same memory, and maybe a token: one byte
// more (jaxccomp/_api/overlap.py).
XLA_FFI_Error* Pass(XLA_FFI_CallFrame* frame);

}  // namespace jaxccomp
