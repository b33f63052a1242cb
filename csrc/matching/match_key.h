// Keys of operations, by which messages find their operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "matching/hash.h"
#include "transport/transport.h"

namespace jaxccomp {

// MatchKey::site of all operations in program order.
inline constexpr uint64_t kOrderedSite = 0x6f72;

// An operation as a message names it, with the member that receives the message.
struct MatchKey {
  uint64_t communicator = 0;
  uint64_t thread = 0;
  uint64_t sequence = 0;
  uint64_t site = 0;
  uint64_t iteration = 0;
  int32_t member = 0;

  static MatchKey Of(const Header& h) {
    return {h.communicator, h.thread, h.sequence, h.site, h.iteration, h.destination};
  }
  friend bool operator==(const MatchKey&, const MatchKey&) = default;
  struct Hash {
    size_t operator()(const MatchKey& k) const {
      return Mix(Mix(Mix(Mix(Mix(k.communicator, k.thread), k.sequence), k.site), k.iteration),
                 static_cast<uint64_t>(k.member));
    }
  };
};

// The latest operations of an endpoint that have ended, with their texts.
class RecentOperations {
 public:
  void Add(const MatchKey& key, std::shared_ptr<const std::string> text) {
    entries_.resize(kMaxEntries);
    entries_[count_++ % kMaxEntries] = {key, std::move(text)};
  }
  // Returns the text of the operation; null if it is not among the latest.
  const std::string* Find(const MatchKey& key) const {
    for (const Entry& entry : entries_) {
      if (entry.text != nullptr && entry.key == key) return entry.text.get();
    }
    return nullptr;
  }
  // Number of operations that have ended so far.
  uint64_t count() const { return count_; }

 private:
  struct Entry {
    MatchKey key;
    std::shared_ptr<const std::string> text;
  };
  static constexpr size_t kMaxEntries = 64;
  std::vector<Entry> entries_;   // empty before the first
  uint64_t count_ = 0;
};

}  // namespace jaxccomp
