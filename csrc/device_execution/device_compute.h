// The computations of execution/compute.h on values in a device's memory: described, and started there.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/completion.h"
#include "common/status.h"
#include "device/device.h"
#include "execution/operation.h"

namespace jaxccomp {

// Whether the task unpacks what can be merged from where another process has it: nothing is copied then.
bool MergesInPlace(const Operation& op, const PlannedTask& task);

// Starts the task. False: there is nothing to compute, and `done` will not be called.
Result<bool> StartCompute(Operation& op, const PlannedTask& task, Completion* done);

// What the host still has to do when the device is done with the task. kEncode sets the code block's
// used_bytes.
Status FinishCompute(Operation& op, const PlannedTask& task, Status status);

// What results hold before anything comes (OpSpec::StartsFromOperands): the operands from `first` on.
std::vector<Device::CopyRun> OperandCopies(const Operation& op, size_t first = 0);
bool StartCopies(const Operation& op, std::span<const Device::CopyRun> runs, Completion* done);

// Sets the results that no task writes.
bool StartFillUnwritten(const Operation& op, Completion* done);

}  // namespace jaxccomp
