// Checks of ragged_alltoall, whose sizes are known only when the program runs.
#pragma once

#include "collective/algorithm.h"
#include "common/status.h"
#include "matching/call.h"

namespace jaxccomp {

// Reads the offsets and sizes among the operands (operand, output, input_offsets, send_sizes, recv_offsets,
// recv_sizes), checks them against the tensors, and stores them in the problem, in bytes.
Status FillRagged(const OpSpec& spec, const Call& call, Problem* problem);

}  // namespace jaxccomp
