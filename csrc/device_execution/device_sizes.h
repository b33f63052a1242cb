// A ragged exchange of tensors on a device: the sizes that its plan depends on lie there as well, and are
// fetched when the caller's stream has made them.
#pragma once

#include <memory>

#include "common/completion.h"
#include "common/options.h"
#include "common/status.h"
#include "execution/operation.h"

namespace jaxccomp {

// Of an operation that waits for its sizes.
std::shared_ptr<const Plan> PlanWithoutSizes();

// Starts to fetch them, and to copy the operands that results start from.
Result<bool> StartFetchSizes(Operation* op, Completion* done);

// The plan for the sizes that were fetched.
Result<std::shared_ptr<const Plan>> PlanWithSizes(const Operation& op, const Options& options);

// It has its plan, or fails.
void DropSizes(Operation* op);

}  // namespace jaxccomp
