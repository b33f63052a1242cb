// The operations of this process that have begun and are not over, by what their messages match.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "execution/operation.h"
#include "matching/match_key.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock.
class Operations {
 public:
  // A new one; null when that key is taken.
  Operation* Insert(const MatchKey& key, bool remote);
  // Null when there is none, or no more.
  Operation* Find(const MatchKey& key) const;
  // It is over. Its memory serves the next one.
  void Remove(Operation* op);
  // Takes it out as it is.
  std::unique_ptr<Operation> Release(Operation* op);

  bool empty() const { return all_.empty(); }
  // How many have a peer in another process.
  int64_t remote_count() const { return remote_count_; }

  template <typename F>
  void Each(F&& f) const {
    for (const auto& [key, op] : all_) f(*op);
  }
  // The first one that f is true for; null when there is none.
  template <typename F>
  Operation* FindIf(F&& f) const {
    for (const auto& [key, op] : all_) {
      if (f(*op)) return op.get();
    }
    return nullptr;
  }
  // The keys of those that f is true for.
  template <typename F>
  std::vector<MatchKey> KeysOf(F&& f) const {
    std::vector<MatchKey> keys;
    Each([&](Operation& op) {
      if (f(op)) keys.push_back(op.key);
    });
    return keys;
  }
  // Calls f with each of them that is still there: it may end others, which are then left out.
  template <typename F>
  void EachOf(const std::vector<MatchKey>& keys, F&& f) {
    for (const MatchKey& key : keys) {
      if (Operation* const op = Find(key)) f(*op);
    }
  }

 private:
  using All = std::unordered_map<MatchKey, std::unique_ptr<Operation>, MatchKey::Hash>;
  static constexpr size_t kMostSpare = 256;

  All::node_type TakeOut(Operation* op);

  All all_;
  std::vector<All::node_type> spare_;   // as new
  int64_t remote_count_ = 0;
};

}  // namespace jaxccomp
