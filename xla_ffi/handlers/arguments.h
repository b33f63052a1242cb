// Converts XLA's call frames to the engine's types. Everything is copied: XLA reuses the frame when the handler
// returns.
#pragma once

#include <optional>
#include <string_view>

#include "common/dtype.h"
#include "matching/call.h"
#include "xla/ffi/api/ffi.h"

namespace jaxccomp {

// Returns the dtype of an XLA type: kOpaque8 for one-byte types without arithmetic; nullopt for tokens and unsupported
// types.
std::optional<DType> FromXla(xla::ffi::DataType type);

// Returns the dtype with this JAX name.
std::optional<DType> FindDType(std::string_view name);

// Fills a tensor. Returns false for a token, an error for an unsupported type.
Result<bool> FromXla(const xla::ffi::AnyBuffer& buffer, Tensor* tensor);

// Returns the description of a call site, from the attributes that jaxccomp/_primitives/lowering.py writes.
Result<OpSpec> SpecFromAttributes(const xla::ffi::Dictionary& attributes);

}  // namespace jaxccomp
