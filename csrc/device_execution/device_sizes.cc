#include "device_execution/device_sizes.h"

#include <algorithm>
#include <span>
#include <vector>

#include "device_execution/device_compute.h"
#include "device_execution/operation_on_device.h"

namespace jaxccomp {
namespace {

// Of the operands: execution/ragged.h.
std::span<Tensor> SizesOf(Call& call) {
  const size_t first = std::min<size_t>(2, call.inputs.size());
  return std::span(call.inputs).subspan(first);
}

}  // namespace

std::shared_ptr<const Plan> PlanWithoutSizes() {
  static const auto* const plan = [] {
    auto made = std::make_shared<Plan>();
    made->on_device = true;
    return new std::shared_ptr<const Plan>(std::move(made));
  }();
  return *plan;
}

Result<bool> StartFetchSizes(Operation* op, Completion* done) {
  AwaitedSizes& sizes = *OnDevice(*op).sizes;
  for (const Tensor& t : SizesOf(op->call)) sizes.memory_bytes += t.bytes;
  sizes.memory = UseOf(*op).codes.Take(sizes.memory_bytes);
  if (sizes.memory == nullptr) {
    return Status(Code::kUnavailable, "out of pinned memory for the sizes of a ragged exchange");
  }
  std::vector<Device::CopyRun> runs = OperandCopies(*op, /*first=*/1);
  std::byte* at = sizes.memory.get();
  for (const Tensor& t : SizesOf(op->call)) {
    if (t.bytes > 0) runs.push_back({at, static_cast<const std::byte*>(t.data), t.bytes});
    at += t.bytes;
  }
  return StartCopies(*op, runs, done);
}

Result<std::shared_ptr<const Plan>> PlanWithSizes(const Operation& op, const Options& options) {
  Call call = op.call;
  const AwaitedSizes& sizes = *OnDevice(op).sizes;
  std::byte* at = sizes.memory.get();
  for (Tensor& t : SizesOf(call)) {
    t.data = at;
    at += t.bytes;
  }
  return MakePlan(sizes.site, *op.endpoint, call, options);
}

void DropSizes(Operation* op) {
  OperationOnDevice& run = OnDevice(*op);
  if (run.sizes == nullptr) return;
  if (run.sizes->memory != nullptr) {
    run.use->codes.Give(std::move(run.sizes->memory), run.sizes->memory_bytes);
  }
  run.sizes.reset();
  run.awaits_sizes = false;
}

}  // namespace jaxccomp
