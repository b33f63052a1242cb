// Schedules that programs make themselves, for the sizes of their calls (jaxccomp/schedules/_custom.py).
//
// A call names those that were made for it by a key, "my_chain:chunk=65536#3f2a9c1b5d8e7064": the text that the
// program has as its algorithm, and a hash of the schedules of all ranks. The key is what ranks compare
// (OpSpec::Signature), so ranks whose schedules differ are told apart before any value moves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "collective/algorithm.h"
#include "collective/schedule.h"
#include "common/status.h"

namespace jaxccomp {

struct RegisteredSchedules {
  std::string name;                  // of the algorithm, without options
  Problem problem;                   // of all ranks; its rank says nothing
  std::vector<Schedule> schedules;   // by rank
  Algorithm algorithm;               // gives these, as any algorithm gives its own
};

// Whether a text is a key.
inline bool IsRegistered(std::string_view algorithm) { return algorithm.find('#') != std::string_view::npos; }

// Keeps schedules, which have passed CheckSchedules, under a key for as long as the process lives.
void KeepRegistered(const std::string& key, std::string name, Collective collective, Problem problem,
                    std::vector<Schedule> schedules);

// What was kept under a key; null where nothing was.
const RegisteredSchedules* FindRegistered(std::string_view key);

}  // namespace jaxccomp
