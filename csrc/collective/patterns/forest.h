// Ranks by what they share, level by level: trees, each with its lowest rank as the root.
#pragma once

#include <initializer_list>
#include <numeric>
#include <span>
#include <unordered_map>
#include <vector>

namespace jaxccomp {

// Members by group, in the order of `members`. group_of[r] is any number for the group of rank r;
// empty: each rank has a group of its own.
inline std::vector<std::vector<int>> GroupsOf(std::span<const int> group_of,
                                              std::span<const int> members) {
  std::vector<std::vector<int>> groups;
  std::unordered_map<int, size_t> places;
  for (int rank : members) {
    const int number = group_of.empty() ? rank : group_of[static_cast<size_t>(rank)];
    const auto [place, fresh] = places.try_emplace(number, groups.size());
    if (fresh) groups.emplace_back();
    groups[place->second].push_back(rank);
  }
  return groups;
}

inline std::vector<std::vector<int>> GroupsOf(std::span<const int> group_of, int ranks) {
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return GroupsOf(group_of, all);
}

// Whether there are several groups, and several ranks in some: then links between groups are what to
// spare.
inline bool ComeInGroups(std::span<const int> group_of, int ranks) {
  const auto groups = static_cast<int>(GroupsOf(group_of, ranks).size());
  return groups > 1 && groups < ranks;
}

// A tree for each group of the widest level. The leader of a group, its lowest rank, has the leaders of
// the groups within it below it, and behind them, at the narrowest level, all other members.
struct Forest {
  std::vector<int> roots;
  std::vector<int> parents;                 // by rank; -1: a root
  std::vector<std::vector<int>> children;   // by rank, those that it shares most with first

  // Groups by level, as above, the widest level first.
  Forest(std::initializer_list<std::span<const int>> levels, int ranks)
      : parents(static_cast<size_t>(ranks), -1), children(static_cast<size_t>(ranks)) {
    for (const auto& group : GroupsOf(*levels.begin(), ranks)) {
      roots.push_back(group[0]);
      Grow(group, {levels.begin() + 1, levels.end()});
    }
  }

 private:
  using Levels = std::span<const std::span<const int>>;
  void Grow(std::span<const int> group, Levels levels) {
    // Below the narrowest level each rank is by itself.
    const auto parts = GroupsOf(levels.empty() ? std::span<const int>() : levels[0], group);
    for (const auto& part : parts) {
      if (part.size() > 1) Grow(part, levels.subspan(1));
    }
    for (size_t i = 1; i < parts.size(); ++i) {
      parents[static_cast<size_t>(parts[i][0])] = group[0];
      children[static_cast<size_t>(group[0])].push_back(parts[i][0]);
    }
  }
};

}  // namespace jaxccomp
