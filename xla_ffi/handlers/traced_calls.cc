#include "handlers/traced_calls.h"

#include <string>
#include <string_view>
#include <utility>

#include "handlers/make_handlers.h"

namespace ffi = xla::ffi;

namespace jaxccomp {
namespace {

using Lock = std::lock_guard<std::mutex>;

Result<std::unique_ptr<TracedSite>> MakeSite(const ffi::Dictionary& attributes) {
  const auto text = [&](const char* name) {
    const ffi::ErrorOr<std::string_view> value = attributes.get<std::string_view>(name);
    return value.has_value() ? std::string(*value) : std::string();
  };
  const auto number = [&](const char* name) {
    const ffi::ErrorOr<int64_t> value = attributes.get<int64_t>(name);
    return value.has_value() ? *value : int64_t{0};
  };
  const Result<Collective> collective = ParseCollective(text("collective"));
  if (!collective.ok()) return collective.status();
  auto site = std::make_unique<TracedSite>();
  OpSpec& spec = site->spec;
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
  site->text = spec.ToString();
  site->operand_bytes = number("operand_bytes");
  return site;
}

struct CountPlatform {
  using Site = TracedSite;
  static Result<std::unique_ptr<TracedSite>> Make(const ffi::Dictionary& attributes) { return MakeSite(attributes); }
  static void Forget(TracedSite&) {}
  static ffi::Error Execute(FfiState<CountPlatform>* state, ffi::RunId, int32_t, ffi::RemainingArgs,
                            ffi::RemainingRets) {
    TracedCalls::Get().Count(*state->site);
    return ffi::Error::Success();
  }
};

}  // namespace

const PlatformHandlers& CountHandlers() { return MakeHandlers<CountPlatform>(); }

TracedCalls& TracedCalls::Get() {
  static auto* const calls = new TracedCalls;   // never destroyed: XLA's threads may outlive static destruction
  return *calls;
}

void TracedCalls::Count(TracedSite& site) {
  const Lock lock(mutex_);
  if (site.row == nullptr) {
    site.row = calls_.RowOf(site.spec, site.text);
    site.row->backend = "xla";
  }
  CollectiveStats& stats = stats_[static_cast<size_t>(site.spec.collective)];
  ++stats.calls;
  stats.value_bytes += site.operand_bytes;
  site.row->counts.Add({.operand_bytes = site.operand_bytes}, false);
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

}  // namespace jaxccomp
