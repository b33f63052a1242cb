// Symbolic values, for the check of schedules.
//
// A value is an expression: a rank's operand, a merge of expressions in order, or the result of a codec.
// A cell is an expression with the address (block and place) it belongs to, so that the check finds values at a
// wrong address.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace jaxccomp {

// Interned expressions: equal ids mean bitwise equal values.
class Expressions {
 public:
  int Operand(int rank) { return Intern({0, rank}, {rank}); }
  // With carried residuals (collective/residual_in.h) an operand is the sum of Unadded and Carried. Either of them
  // alone, and memory overwritten by a compression error (Gone), must not be in a result.
  int Unadded(int rank) { return Intern({4, rank}, {-1}); }
  int Carried(int rank) { return Intern({5, rank}, {-1}); }
  int Gone() { return Intern({6}, {-1}); }
  // A codec's result; `whose` and `which`: the seed of its random numbers (schedule.h).
  int Coded(int of, int whose, int which) { return Intern({1, of, whose, which}, leaves_[of]); }
  int Merged(const std::vector<int>& parts, bool final) {
    if (parts == last_parts_ && final == last_final_) return last_id_;
    if (parts.size() == 2 && keys_[parts[0]][0] == 4 && !final) {
      const int rank = keys_[parts[0]][1];
      if (parts[1] == Carried(rank)) return Operand(rank);
    }
    std::vector<int> key = {final ? 3 : 2};
    std::vector<int> leaves;
    for (int part : parts) {
      key.push_back(part);
      leaves.insert(leaves.end(), leaves_[part].begin(), leaves_[part].end());
    }
    last_parts_ = parts;
    last_final_ = final;
    return last_id_ = Intern(key, leaves);
  }
  // The encodings that contribute to a value, each as often as it contributes.
  std::vector<int> Encoded(int id) const {
    std::vector<int> encoded;
    std::vector<int> open = {id};
    while (!open.empty()) {
      const std::vector<int>& key = keys_[open.back()];
      open.pop_back();
      if (key[0] == 1) encoded.push_back(key[1]);
      if (key[0] == 0) continue;
      open.insert(open.end(), key.begin() + 1, key[0] == 1 ? key.begin() + 2 : key.end());
    }
    return encoded;
  }
  // The operands in the order in which they were merged.
  const std::vector<int>& Leaves(int id) const { return leaves_[id]; }
  bool IsFinal(int id) const {
    while (keys_[id][0] == 1) id = keys_[id][1];
    return keys_[id][0] == 3;
  }
  bool IsOperand(int id) const { return keys_[id][0] == 0; }
  bool IsCodeOf(int id, int of) const { return keys_[id][0] == 1 && keys_[id][1] == of; }

 private:
  int Intern(const std::vector<int>& key, const std::vector<int>& leaves) {
    const auto [at, fresh] = ids_.try_emplace(key, static_cast<int>(keys_.size()));
    if (fresh) {
      keys_.push_back(key);
      leaves_.push_back(leaves);
    }
    return at->second;
  }
  std::map<std::vector<int>, int> ids_;
  std::vector<std::vector<int>> keys_, leaves_;
  std::vector<int> last_parts_;
  bool last_final_ = false;
  int last_id_ = -1;
};

struct Cell {
  int32_t block = -1;
  int32_t place = -1;
  int32_t value = -1;  // -1: never written
  friend bool operator==(const Cell&, const Cell&) = default;
};
using Block = std::vector<Cell>;

}  // namespace jaxccomp
