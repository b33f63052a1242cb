#include "handlers/traced_calls.h"

#include <string>
#include <string_view>

#include "handlers/platform_handlers.h"

namespace ffi = xla::ffi;

namespace jaxccomp {
namespace {

using Lock = std::lock_guard<std::mutex>;

ffi::Error CountCall(ffi::Dictionary attributes) {
  const auto text = [&](const char* name) {
    const ffi::ErrorOr<std::string_view> value = attributes.get<std::string_view>(name);
    return value.has_value() ? std::string(*value) : std::string();
  };
  const auto number = [&](const char* name) {
    const ffi::ErrorOr<int64_t> value = attributes.get<int64_t>(name);
    return value.has_value() ? *value : int64_t{0};
  };
  const Result<Collective> collective = ParseCollective(text("collective"));
  if (!collective.ok()) return ffi::Error::InvalidArgument(collective.status().message());
  OpSpec spec;
  spec.collective = *collective;
  if (const std::string reduction = text("reduce_op"); reduction == "mean") {
    spec.mean = true;
  } else {
    spec.reduce_op = ParseReduceOp(reduction).value_or(ReduceOp::kSum);
  }
  spec.root = number("root");
  spec.codec = text("codec");
  spec.algorithm = "";
  spec.communicator = text("communicator");
  spec.group_size = number("group_size");
  spec.shapes = text("shapes");
  spec.where = text("where");
  TracedCalls::Get().Count(spec, number("operand_bytes"));
  return ffi::Error::Success();
}

}  // namespace

TracedCalls& TracedCalls::Get() {
  static auto* const calls = new TracedCalls;   // never destroyed: XLA's threads may outlive static destruction
  return *calls;
}

void TracedCalls::Count(const OpSpec& spec, int64_t bytes) {
  const std::string text = spec.ToString();
  const Lock lock(mutex_);
  CollectiveStats& stats = stats_[static_cast<size_t>(spec.collective)];
  ++stats.calls;
  stats.value_bytes += bytes;
  CallRow& row = *calls_.RowOf(spec, text);
  row.backend = "xla";
  row.counts.Add({.operand_bytes = bytes}, false);
}

Stats TracedCalls::GetStats() const {
  const Lock lock(mutex_);
  return stats_;
}

CallLog::Snapshot TracedCalls::GetCallLog() const {
  const Lock lock(mutex_);
  return calls_.Take();
}

void TracedCalls::Reset() {
  const Lock lock(mutex_);
  stats_ = {};
  calls_.Reset();
}

XLA_FFI_Error* Count(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind().Attrs().To(CountCall).release();
  return handler->Call(frame);
}

}  // namespace jaxccomp
