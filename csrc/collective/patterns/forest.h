// Groups of ranks, such as the ranks of one host, and trees with a group's lowest rank as the root.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

namespace jaxccomp {

// The ranks of each group, sorted. group_of[r]: any id of rank r's group; empty: each rank is its own group.
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

// Whether there are several groups, and several ranks in one: then an algorithm should save traffic between
// groups.
inline bool ComeInGroups(std::span<const int> group_of, int ranks) {
  const auto groups = static_cast<int>(GroupsOf(group_of, ranks).size());
  return groups > 1 && groups < ranks;
}

// Whether each group has a single rank.
inline bool AreAllApart(std::span<const int> group_of, int ranks) {
  return GroupsOf(group_of, ranks).size() == static_cast<size_t>(ranks);
}

// A tree for each group: the root is the lowest rank; all other members are its children.
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
