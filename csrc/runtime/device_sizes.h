// A ragged exchange of tensors on a device: the sizes that its plan depends on lie there as well, and are
// fetched when the caller's stream has made them.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "common/completion.h"
#include "common/status.h"
#include "runtime/memory.h"
#include "runtime/operation.h"

namespace jaxccomp {

// What an operation holds until it has its plan.
struct AwaitedSizes {
  explicit AwaitedSizes(const Site& of) {
    site.spec = of.spec;
    site.codec = of.codec;
  }
  Site site;                    // what the plan needs of it: the program may forget its own
  BufferPool::Buffer memory;    // pinned: where the sizes come to
  int64_t memory_bytes = 0;
};

// Of an operation that waits for its sizes.
std::shared_ptr<const Plan> PlanWithoutSizes();

// Starts to fetch them, and to copy the operands that results start from.
Result<bool> StartFetchSizes(Operation* op, Completion* done);

// The plan for the sizes that were fetched.
Result<std::shared_ptr<const Plan>> PlanWithSizes(const Operation& op, const Options& options);

void DropSizes(Operation* op);

}  // namespace jaxccomp
