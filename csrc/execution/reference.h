// Values that ranks hold before an operation (Call::refs): the difference to them is coded.
//
// Against another reference a code decodes to wrong values without a sign. So it begins with the
// checksum of the reference's part, and nothing is decoded against a part with another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/status.h"
#include "execution/code_block.h"
#include "execution/operation.h"

namespace jaxccomp {

// The reference of a part of an operand or result; null when the operation has none.
const std::byte* ReferenceOf(const Operation& op, const Part& part);

// Writes the checksum of the part's reference and returns where the code goes on.
std::byte* PutChecksum(const Operation& op, const Part& part, std::byte* at);

// Takes the sender's checksum off `code` and compares. kFailedPrecondition when this rank's is another one.
Status TakeChecksum(const Operation& op, const Part& part, std::span<const std::byte>* code);

ReferencePlaces PlacesOfReferences(const OpSpec& spec, int member, const Call& call);

// Whether all that the plan codes are parts of operands and results, which have references.
Status CheckCodesHaveReferences(const Plan& plan);

}  // namespace jaxccomp
