// The FFI handlers, as XLA sees them.
#pragma once

#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace jaxccomp {

// What XLA keeps for each compiled call site.
struct CallSite;

XLA_FFI_Error* InstantiateCollective(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* ExecuteCollective(XLA_FFI_CallFrame* frame);
xla::ffi::TypeId* CallSiteTypeId();
const xla::ffi::TypeInfo* CallSiteTypeInfo();

}  // namespace jaxccomp
