// References: values that ranks share before an operation (Call::refs). The difference to them is encoded.
//
// A code decoded against another reference gives wrong values without an error. So each code begins with the checksum
// of its part of the reference, and is decoded only if the receiver's part has the same one.
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

// Writes the checksum of the part's reference and returns the end of it.
std::byte* PutChecksum(const Operation& op, const Part& part, std::byte* at);

// Removes the sender's checksum from `code`. kFailedPrecondition if this rank's reference has another one.
Status TakeChecksum(const Operation& op, const Part& part, std::span<const std::byte>* code);

ReferencePlaces PlacesOfReferences(const OpSpec& spec, int member, const Call& call);

// Fails if the plan encodes anything else than parts of operands and results, which have references.
Status CheckCodesHaveReferences(const Plan& plan);

}  // namespace jaxccomp
