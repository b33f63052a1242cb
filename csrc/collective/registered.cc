#include "collective/registered.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace jaxccomp {
namespace {

// Never erased: plans and statistics refer to the entries.
struct Kept {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<const RegisteredSchedules>, std::less<>> by_key;
};

Kept& TheKept() {
  static Kept* const kept = new Kept;
  return *kept;
}

Schedule OfRank(const Problem& problem) { return problem.registered->schedules[problem.rank]; }

}  // namespace

void KeepRegistered(const std::string& key, std::string name, Collective collective, Problem problem,
                    std::vector<Schedule> schedules) {
  auto made = std::make_unique<RegisteredSchedules>();
  made->name = std::move(name);
  made->problem = std::move(problem);
  made->schedules = std::move(schedules);
  made->algorithm = {collective, made->name, "registered by the program", &OfRank};
  const std::lock_guard lock(TheKept().mutex);
  TheKept().by_key.try_emplace(key, std::move(made));
}

const RegisteredSchedules* FindRegistered(std::string_view key) {
  const std::lock_guard lock(TheKept().mutex);
  const auto found = TheKept().by_key.find(key);
  return found == TheKept().by_key.end() ? nullptr : found->second.get();
}

}  // namespace jaxccomp
