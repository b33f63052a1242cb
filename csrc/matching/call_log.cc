#include "matching/call_log.h"

#include <algorithm>

namespace jaxccomp {
namespace {

std::shared_ptr<CallRow> MakeRow(const OpSpec& spec, const std::string& text) {
  auto row = std::make_shared<CallRow>();
  row->collective = spec.collective;
  if (Info(spec.collective).reduces) {
    row->reduction = spec.mean ? "mean" : std::string(Name(spec.reduce_op));
  }
  row->root = spec.root;
  row->shapes = spec.shapes;
  row->where = spec.where;
  row->communicator = spec.communicator;
  row->codec = spec.codec;
  row->requested_algorithm = spec.algorithm;
  row->ranks = spec.group_size;
  if (spec.mpi) row->backend = "mpi";
  row->text = text;
  return row;
}

}  // namespace

void CallCounts::Add(const CallCost& cost, bool has_failed) {
  ++calls;
  sum.operand_bytes += cost.operand_bytes;
  sum.sent_bytes += cost.sent_bytes;
  sum.remote_bytes += cost.remote_bytes;
  sum.received_bytes += cost.received_bytes;
  if (has_failed) {
    ++failed;
    return;
  }
  recent[static_cast<size_t>(calls - failed - 1) % kRecent] = static_cast<float>(cost.seconds);
  sum.seconds += cost.seconds;
  sum.wait_seconds += cost.wait_seconds;
  max_seconds = std::max(max_seconds, cost.seconds);
}

double CallCounts::MedianSeconds() const {
  const size_t count = std::min(static_cast<size_t>(calls - failed), kRecent);
  if (count == 0) return 0;
  std::array<float, kRecent> sorted = recent;
  std::sort(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(count));
  return (static_cast<double>(sorted[(count - 1) / 2]) + static_cast<double>(sorted[count / 2])) / 2;
}

std::shared_ptr<CallRow> CallLog::RowOf(const OpSpec& spec, const std::string& text) {
  const std::string key = text + '\n' + spec.communicator + '\n' + std::to_string(spec.group_size);
  const auto known = rows_.find(key);
  if (known != rows_.end()) return known->second;
  if (rows_.size() >= kMaxRows) return others_;
  return rows_[key] = MakeRow(spec, text);
}

CallLog::Snapshot CallLog::Take() const {
  Snapshot snapshot{{}, since_};
  for (const auto& [key, row] : rows_) {
    if (row->counts.calls > 0) snapshot.rows.push_back(*row);
  }
  if (others_->counts.calls > 0) snapshot.rows.push_back(*others_);
  return snapshot;
}

void CallLog::Reset() {
  std::erase_if(rows_, [](const auto& entry) { return entry.second.use_count() == 1; });
  for (const auto& [key, row] : rows_) row->counts = {};
  others_->counts = {};
  since_ = std::chrono::system_clock::now();
}

}  // namespace jaxccomp
