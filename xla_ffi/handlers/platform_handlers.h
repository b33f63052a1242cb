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

// The CPU handler of jaxccomp_pass (jaxccomp/_api/overlap.py). Its first operands are its first results, in the same
// memory. One more result may follow: a token of one byte.
XLA_FFI_Error* Pass(XLA_FFI_CallFrame* frame);

// The CPU handlers of jaxccomp_count (jaxccomp/_primitives/lowering.py), which counts a call that XLA runs without the
// engine (TracedCalls). It has no operands and no results.
const PlatformHandlers& CountHandlers();

}  // namespace jaxccomp
