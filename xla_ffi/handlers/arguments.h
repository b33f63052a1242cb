// From XLA's call frame to the engine's types. Everything is copied out: the frame is recycled
// as soon as the handler returns.
#pragma once

#include <optional>
#include <string_view>

#include "common/dtype.h"
#include "matching/call.h"
#include "xla/ffi/api/ffi.h"

namespace jaxccomp {

// Nothing for tokens; kOpaque8 for one-byte types that are only moved.
std::optional<DType> FromXla(xla::ffi::DataType type);

// The dtype of that name, as JAX has it.
std::optional<DType> FindDType(std::string_view name);

// Fills a tensor; false for tokens, an error for types that cannot be moved.
Result<bool> FromXla(const xla::ffi::AnyBuffer& buffer, Tensor* tensor);

// The static description of a call site from the attributes that jaxccomp/_primitives/lowering.py writes.
Result<OpSpec> SpecFromAttributes(const xla::ffi::Dictionary& attributes);

}  // namespace jaxccomp
