// References: values that sender and receiver have before an operation (Call::refs). The codec encodes the difference
// to them.
//
// A code decoded against another reference gives wrong values without an error. So each code begins with the checksum
// of its part of the reference, and is decoded only if the receiver's part has the same checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/status.h"
#include "execution/code_block.h"
#include "execution/operation.h"

namespace jaxccomp {

// The reference of a part of an operand or result; null if the operation has none.
const std::byte* ReferenceOf(const Operation& op, const Part& part);

// Writes the checksum of the part's reference to `at`, and returns the address after it.
std::byte* PutChecksum(const Operation& op, const Part& part, std::byte* at);

// Removes the sender's checksum from `code`. kFailedPrecondition if this rank's reference has another checksum.
Status TakeChecksum(const Operation& op, const Part& part, std::span<const std::byte>* code);

ReferencePlaces PlacesOfReferences(const OpSpec& spec, int member, const Call& call);

// Fails unless the plan encodes parts of operands only, and decodes into parts of results only: other values have no
// reference.
Status CheckCodesHaveReferences(const Plan& plan);

}  // namespace jaxccomp
