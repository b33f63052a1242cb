#include "execution/operations.h"

#include <utility>

namespace jaxccomp {

Operation* Operations::Insert(const MatchKey& key, bool remote) {
  const auto [slot, is_new] = all_.try_emplace(key);
  if (!is_new) return nullptr;
  if (spare_.empty()) {
    slot->second = std::make_unique<Operation>();
  } else {
    slot->second = std::move(spare_.back());
    spare_.pop_back();
  }
  Operation* const op = slot->second.get();
  op->key = key;
  op->remote = remote;
  remote_count_ += remote;
  return op;
}

Operation* Operations::Find(const MatchKey& key) const {
  const auto found = all_.find(key);
  return found == all_.end() ? nullptr : found->second.get();
}

std::unique_ptr<Operation> Operations::Release(Operation* op) {
  const auto found = all_.find(op->key);
  std::unique_ptr<Operation> owned = std::move(found->second);
  all_.erase(found);
  remote_count_ -= owned->remote;
  return owned;
}

void Operations::Remove(Operation* op) {
  std::unique_ptr<Operation> owned = Release(op);
  if (spare_.size() >= kMostSpare) return;
  owned->Renew();
  spare_.push_back(std::move(owned));
}

}  // namespace jaxccomp
