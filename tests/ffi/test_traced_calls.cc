// The handlers of jaxccomp_count, called as XLA calls them.
#include <cstdint>
#include <string>
#include <utility>

#include "check.h"
#include "fake_xla.h"
#include "handlers/platform_handlers.h"
#include "handlers/traced_calls.h"

namespace jaxccomp {
namespace {

using testing::Attributes;
using testing::Outcome;

// A compiled call.
class Site {
 public:
  explicit Site(const std::string& collective, const std::string& where = "train.py:7") {
    Attributes attributes;
    attributes.Add("collective", collective);
    attributes.Add("reduce_op", "mean");
    attributes.Add("codec", "bf16");
    attributes.Add("group_size", 4);
    attributes.Add("shapes", "float32[100]");
    attributes.Add("where", where);
    attributes.Add("operand_bytes", 400);
    XLA_FFI_ExecutionContext context;
    outcome = testing::CallHandler(CountHandlers().instantiate, XLA_FFI_ExecutionStage_INSTANTIATE, &context,
                                   std::move(attributes), {}, {});
    state_ = context.state;
  }
  ~Site() {
    if (state_ != nullptr) CountHandlers().type_info->deleter(state_);
  }
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  void Run() {
    XLA_FFI_ExecutionContext context;
    context.state = state_;
    CHECK_EQ(testing::CallHandler(CountHandlers().execute, XLA_FFI_ExecutionStage_EXECUTE, &context, {}, {}, {}).message,
             "");
  }

  Outcome outcome;

 private:
  void* state_ = nullptr;
};

TEST(traced_calls_of_one_line_share_a_row) {
  TracedCalls& calls = TracedCalls::Get();
  calls.Reset();
  Site first("allreduce"), again("allreduce"), other("allreduce", "train.py:9");
  CHECK_EQ(calls.GetCallLog().rows.size(), size_t{0});
  for (int i = 0; i < 3; ++i) first.Run();
  again.Run();
  const CallLog::Snapshot log = calls.GetCallLog();
  if (!CHECK_EQ(log.rows.size(), size_t{1})) return;
  const CallRow& row = log.rows[0];
  CHECK_EQ(row.reduction, "mean");
  CHECK_EQ(row.where, "train.py:7");
  CHECK_EQ(row.shapes, "float32[100]");
  CHECK_EQ(row.codec, "bf16");
  CHECK_EQ(row.ranks, int64_t{4});
  CHECK_EQ(row.backend, "xla");
  CHECK_EQ(row.counts.calls, int64_t{4});
  CHECK_EQ(row.counts.sum.operand_bytes, int64_t{1600});
  other.Run();
  CHECK_EQ(calls.GetCallLog().rows.size(), size_t{2});
  CHECK_EQ(calls.GetStats()[static_cast<size_t>(row.collective)].calls, int64_t{5});
}

TEST(traced_calls_of_a_compiled_site_are_counted_after_a_reset) {
  TracedCalls& calls = TracedCalls::Get();
  Site site("allgather");
  site.Run();
  calls.Reset();
  CHECK_EQ(calls.GetCallLog().rows.size(), size_t{0});
  site.Run();
  const CallLog::Snapshot log = calls.GetCallLog();
  if (!CHECK_EQ(log.rows.size(), size_t{1})) return;
  CHECK_EQ(log.rows[0].counts.calls, int64_t{1});
}

TEST(traced_calls_refuse_an_unknown_collective) {
  const Site site("allrecude");
  CHECK_EQ(site.outcome.code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
  CHECK(site.outcome.message.find("allrecude") != std::string::npos);
}

}  // namespace
}  // namespace jaxccomp
