#include "execution/operations.h"

#include <utility>

namespace jaxccomp {

Operation* Operations::Insert(const MatchKey& key, bool remote) {
  Operation* op = nullptr;
  if (spare_.empty()) {
    const auto [slot, is_new] = all_.try_emplace(key);
    if (!is_new) return nullptr;
    op = (slot->second = std::make_unique<Operation>()).get();
  } else {
    All::node_type& spare = spare_.back();
    spare.key() = key;
    All::insert_return_type inserted = all_.insert(std::move(spare));
    if (!inserted.inserted) {
      spare = std::move(inserted.node);
      return nullptr;
    }
    spare_.pop_back();
    op = inserted.position->second.get();
  }
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
  return std::move(TakeOut(op).mapped());
}

void Operations::Remove(Operation* op) {
  All::node_type node = TakeOut(op);
  if (spare_.size() >= kMaxSpare) return;
  node.mapped()->Renew();
  spare_.push_back(std::move(node));
}

Operations::All::node_type Operations::TakeOut(Operation* op) {
  remote_count_ -= op->remote;
  return all_.extract(op->key);
}

}  // namespace jaxccomp
