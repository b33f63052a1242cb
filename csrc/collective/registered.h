// Custom schedules, which programs make for the sizes of their calls (jaxccomp/schedules/_custom.py).
//
// A call refers to its schedules by a key, "my_chain:chunk=65536#3f2a9c1b5d8e7064": the program's algorithm text
// and a hash of the schedules of all ranks. Ranks compare the key (OpSpec::Signature), so that differing
// schedules are an error before any value is sent.
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
  Problem problem;                   // of all ranks; `rank` is unused
  std::vector<Schedule> schedules;   // by rank
  Algorithm algorithm;               // its build function returns these schedules
};

// Whether the text is a key.
inline bool IsRegistered(std::string_view algorithm) { return algorithm.find('#') != std::string_view::npos; }

// Stores schedules that have passed CheckSchedules under a key, until the process ends.
void KeepRegistered(const std::string& key, std::string name, Collective collective, Problem problem,
                    std::vector<Schedule> schedules);

// The schedules of a key, or null.
const RegisteredSchedules* FindRegistered(std::string_view key);

}  // namespace jaxccomp
