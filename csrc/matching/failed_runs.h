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
  // Returns false if the launch was recorded before.
  bool Add(int64_t run_id, const Status& why) {
    if (Find(run_id) != nullptr) return false;
    if (runs_.size() >= kRemembered) runs_.pop_front();
    runs_.emplace_back(run_id, why);
    return true;
  }
  // Returns why the launch has failed; null if it has not, or failed long ago.
  const Status* Find(int64_t run_id) const {
    for (const auto& [id, why] : runs_) {
      if (id == run_id) return &why;
    }
    return nullptr;
  }
  // Whether a launch has failed whose RunId has these lower 32 bits, which messages carry.
  bool Has(uint32_t run) const {
    for (const auto& [id, why] : runs_) {
      if (static_cast<uint32_t>(id) == run) return true;
    }
    return false;
  }

 private:
  // More launches than run at once.
  static constexpr size_t kRemembered = 64;
  std::deque<std::pair<int64_t, Status>> runs_;
};

}  // namespace jaxccomp
