// Binomial trees over virtual ranks: the root is 0, and rank v's subtree is the contiguous range
// [v, v + limit()).
#pragma once

#include <algorithm>

#include "collective/patterns/ring.h"

namespace jaxccomp {

struct BinomialNode {
  int virtual_rank;
  int ranks;
  int root;

  BinomialNode(int rank, int tree_root, int rank_count)
      : virtual_rank(Shifted(rank, -tree_root, rank_count)), ranks(rank_count), root(tree_root) {}

  bool is_root() const { return virtual_rank == 0; }
  int RankOf(int v) const { return Shifted(v, root, ranks); }
  // A power of two: the children are at v + 1, v + 2, v + 4, ... below v + limit().
  int limit() const {
    if (!is_root()) return virtual_rank & -virtual_rank;
    int power = 1;
    while (power < ranks) power *= 2;
    return power;
  }
  int parent() const { return virtual_rank - limit(); }
  // One past the last virtual rank in the subtree of the child at `distance`.
  int ChildEnd(int distance) const { return std::min(virtual_rank + 2 * distance, ranks); }
  int SubtreeEnd() const { return std::min(virtual_rank + limit(), ranks); }
};

}  // namespace jaxccomp
