// Rows of call sites, for `jaxccomp.stats.log`.
#include "check.h"
#include "matching/call_log.h"

namespace jaxccomp {
namespace {

OpSpec At(const std::string& where) {
  OpSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.shapes = "float32[4]";
  spec.where = where;
  spec.communicator = "world";
  spec.group_size = 2;
  return spec;
}

std::shared_ptr<CallRow> RowOf(CallLog& log, const OpSpec& spec) {
  return log.RowOf(spec, spec.ToString());
}

TEST(call_log_shares_a_row_between_equal_call_sites) {
  CallLog log;
  OpSpec spec = At("a.py:1");
  const auto row = RowOf(log, spec);
  CHECK(row == RowOf(log, spec));
  CHECK(row != RowOf(log, At("a.py:2")));
  spec.communicator = "other";
  CHECK(row != RowOf(log, spec));
  CHECK(log.Take().rows.empty());   // none has run
}

TEST(call_log_counts_no_seconds_for_failed_calls) {
  CallCounts counts;
  counts.Add({.sent_bytes = 3, .seconds = 300}, true);
  CHECK_EQ(counts.MedianSeconds(), 0.0);
  for (const double seconds : {4.0, 1.0, 2.0}) counts.Add({.sent_bytes = 1, .seconds = seconds}, false);
  CHECK_EQ(counts.calls, 4);
  CHECK_EQ(counts.failed, 1);
  CHECK_EQ(counts.sum.sent_bytes, 6);
  CHECK_EQ(counts.sum.seconds, 7.0);
  CHECK_EQ(counts.max_seconds, 4.0);
  CHECK_EQ(counts.MedianSeconds(), 2.0);
}

TEST(call_log_median_covers_the_most_recent_calls) {
  CallCounts counts;
  for (size_t i = 0; i < 1000; ++i) counts.Add({.seconds = 100}, false);
  for (size_t i = 0; i < CallCounts::kRecent; ++i) counts.Add({.seconds = i % 2 == 0 ? 1.0 : 2.0}, false);
  CHECK_EQ(counts.MedianSeconds(), 1.5);
  CHECK_EQ(counts.max_seconds, 100.0);
}

TEST(call_log_has_a_maximum_number_of_rows) {
  CallLog log;
  for (size_t i = 0; i < 2 * CallLog::kMaxRows; ++i) {
    RowOf(log, At("a.py:" + std::to_string(i)))->counts.Add({.sent_bytes = 1}, false);
  }
  const auto rows = log.Take().rows;
  CHECK_EQ(rows.size(), CallLog::kMaxRows + 1);
  CHECK_EQ(rows.back().text, "");
  CHECK_EQ(rows.back().counts.sum.sent_bytes, static_cast<int64_t>(CallLog::kMaxRows));
}

TEST(call_log_reset_clears_all_rows) {
  CallLog log;
  const auto kept = RowOf(log, At("a.py:1"));
  kept->counts.Add({.seconds = 1}, false);
  RowOf(log, At("a.py:2"))->counts.Add({.seconds = 1}, false);   // no call site refers to this row any more
  const auto since = log.Take().since;
  log.Reset();
  CHECK(log.Take().rows.empty());
  CHECK(log.Take().since >= since);
  CHECK(RowOf(log, At("a.py:1")) == kept);   // existing call sites keep their rows
  kept->counts.Add({.seconds = 1}, false);
  CHECK_EQ(log.Take().rows.size(), size_t{1});
}

}  // namespace
}  // namespace jaxccomp
