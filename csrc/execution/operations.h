// The operations of this process that are not over, by the match key of their messages.
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
  // Inserts a new operation; null if the key is taken.
  Operation* Insert(const MatchKey& key, bool remote);
  // Null if there is none.
  Operation* Find(const MatchKey& key) const;
  // Removes an operation that is over. A later Insert reuses its memory.
  void Remove(Operation* op);
  // Removes an operation and returns it unchanged.
  std::unique_ptr<Operation> Release(Operation* op);

  bool empty() const { return all_.empty(); }
  // Number of operations with a peer in another process.
  int64_t remote_count() const { return remote_count_; }

  template <typename F>
  void Each(F&& f) const {
    for (const auto& [key, op] : all_) f(*op);
  }
  // The first operation for which f holds; null if there is none.
  template <typename F>
  Operation* FindIf(F&& f) const {
    for (const auto& [key, op] : all_) {
      if (f(*op)) return op.get();
    }
    return nullptr;
  }
  // The keys of the operations for which f holds.
  template <typename F>
  std::vector<MatchKey> KeysOf(F&& f) const {
    std::vector<MatchKey> keys;
    Each([&](Operation& op) {
      if (f(op)) keys.push_back(op.key);
    });
    return keys;
  }
  // Calls f with each operation of `keys` that still exists. f may end other operations, which are then skipped.
  template <typename F>
  void EachOf(const std::vector<MatchKey>& keys, F&& f) {
    for (const MatchKey& key : keys) {
      if (Operation* const op = Find(key)) f(*op);
    }
  }

 private:
  using All = std::unordered_map<MatchKey, std::unique_ptr<Operation>, MatchKey::Hash>;
  static constexpr size_t kMaxSpare = 256;

  All::node_type TakeOut(Operation* op);

  All all_;
  std::vector<All::node_type> spare_;   // removed operations, after Operation::Renew
  int64_t remote_count_ = 0;
};

}  // namespace jaxccomp
