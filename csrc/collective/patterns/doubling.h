// Recursive doubling over any number of ranks: with `folded` ranks more than a power of two, the even
// ranks below 2 * folded send their values to their odd neighbour and do not participate.
#pragma once

namespace jaxccomp {

struct Doubling {
  int power = 1;   // participating ranks: the largest power of two
  int steps = 0;   // log2(power)
  int folded = 0;  // ranks that do not participate

  explicit Doubling(int ranks) {
    while (2 * power <= ranks) {
      power *= 2;
      ++steps;
    }
    folded = ranks - power;
  }
  bool SitsOut(int rank) const { return rank < 2 * folded && rank % 2 == 0; }
  bool StandsForTwo(int rank) const { return rank < 2 * folded && rank % 2 == 1; }
  // The index among the participating ranks, in rank order; RankAt is the inverse.
  int PlaceOf(int rank) const { return rank < 2 * folded ? rank / 2 : rank - folded; }
  int RankAt(int place) const { return place < folded ? 2 * place + 1 : place + folded; }
};

}  // namespace jaxccomp
