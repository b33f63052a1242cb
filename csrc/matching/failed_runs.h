// Launches that have failed within a process. Operations that later begin in such a launch get its error; the next
// launch is not affected.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "common/status.h"

namespace jaxccomp {

class FailedRuns {
 public:
  // False: it was known.
  bool Add(int64_t run_id, const Status& why) {
    if (Find(run_id) != nullptr) return false;
    if (runs_.size() >= kRemembered) runs_.pop_front();
    runs_.emplace_back(run_id, why);
    return true;
  }
  // Null if it has not failed, or failed long ago.
  const Status* Find(int64_t run_id) const {
    for (const auto& [id, why] : runs_) {
      if (id == run_id) return &why;
    }
    return nullptr;
  }
  // By the part of the RunId that messages carry.
  bool Has(uint32_t run) const {
    for (const auto& [id, why] : runs_) {
      if (static_cast<uint32_t>(id) == run) return true;
    }
    return false;
  }

 private:
  // More than run at once.
  static constexpr size_t kRemembered = 64;
  std::deque<std::pair<int64_t, Status>> runs_;
};

}  // namespace jaxccomp
