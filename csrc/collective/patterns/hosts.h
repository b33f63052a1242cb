// Ranks by the host that they run on.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

namespace jaxccomp {

struct Hosts {
  std::vector<std::vector<int>> members;  // by host, in order of rank; the first is its leader
  std::vector<int> leaders;
  int own = 0;                            // the host of `rank`

  // host_of[r] is any number for the host of rank r; empty: each rank has a host of its own.
  Hosts(std::span<const int> host_of, int rank, int ranks) {
    std::vector<int> seen;
    for (int r = 0; r < ranks; ++r) {
      const int number = host_of.empty() ? r : host_of[r];
      const auto found = std::find(seen.begin(), seen.end(), number);
      const auto host = static_cast<size_t>(found - seen.begin());
      if (found == seen.end()) {
        seen.push_back(number);
        members.emplace_back();
        leaders.push_back(r);
      }
      members[host].push_back(r);
      if (r == rank) own = static_cast<int>(host);
    }
  }
  int count() const { return static_cast<int>(leaders.size()); }
};

}  // namespace jaxccomp
