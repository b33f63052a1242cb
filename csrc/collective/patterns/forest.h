// Ranks by the host that they share: trees, each with its lowest rank as the root.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

namespace jaxccomp {

// Ranks by group, in their order. group_of[r] is any number for the group of rank r; empty: each rank has
// a group of its own.
inline std::vector<std::vector<int>> GroupsOf(std::span<const int> group_of, int ranks) {
  std::vector<std::vector<int>> groups;
  std::unordered_map<int, size_t> places;
  for (int rank = 0; rank < ranks; ++rank) {
    const int number = group_of.empty() ? rank : group_of[static_cast<size_t>(rank)];
    const auto [place, fresh] = places.try_emplace(number, groups.size());
    if (fresh) groups.emplace_back();
    groups[place->second].push_back(rank);
  }
  return groups;
}

// Whether there are several groups, and several ranks in some: then links between groups are what to
// spare.
inline bool ComeInGroups(std::span<const int> group_of, int ranks) {
  const auto groups = static_cast<int>(GroupsOf(group_of, ranks).size());
  return groups > 1 && groups < ranks;
}

// A tree for each group: its root is the lowest rank, which has all other members below it.
struct Forest {
  std::vector<int> roots;
  std::vector<int> parents;                 // by rank; -1: a root
  std::vector<std::vector<int>> children;   // by rank

  Forest(std::span<const int> group_of, int ranks)
      : parents(static_cast<size_t>(ranks), -1), children(static_cast<size_t>(ranks)) {
    for (const auto& group : GroupsOf(group_of, ranks)) {
      roots.push_back(group[0]);
      for (size_t i = 1; i < group.size(); ++i) {
        parents[static_cast<size_t>(group[i])] = group[0];
        children[static_cast<size_t>(group[0])].push_back(group[i]);
      }
    }
  }
};

}  // namespace jaxccomp
