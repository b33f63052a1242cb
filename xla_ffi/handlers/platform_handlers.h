// The FFI handlers, as XLA sees them.
#pragma once

#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace jaxccomp {

// What is registered for one of XLA's platforms.
struct PlatformHandlers {
  XLA_FFI_Error* (*instantiate)(XLA_FFI_CallFrame* frame);
  XLA_FFI_Error* (*execute)(XLA_FFI_CallFrame* frame);
  xla::ffi::TypeId* type_id;              // of what XLA keeps for each call site
  const xla::ffi::TypeInfo* type_info;
};

const PlatformHandlers& CpuHandlers();
const PlatformHandlers& CudaHandlers();

}  // namespace jaxccomp
