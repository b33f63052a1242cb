// What tells the operations of a process apart, and which message belongs to which.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/hash.h"
#include "transport/transport.h"

namespace jaxccomp {

// What a message names, and the member it is for.
struct MatchKey {
  uint64_t communicator = 0;
  uint64_t sequence = 0;
  uint64_t site = 0;
  uint64_t iteration = 0;
  int32_t member = 0;

  static MatchKey Of(const Header& h) {
    return {h.communicator, h.sequence, h.site, h.iteration, h.destination};
  }
  friend bool operator==(const MatchKey&, const MatchKey&) = default;
  struct Hash {
    size_t operator()(const MatchKey& k) const {
      return Mix(Mix(Mix(Mix(k.communicator, k.sequence), k.site), k.iteration),
                 static_cast<uint64_t>(k.member));
    }
  };
};

// The operations of an endpoint that ended last.
class RecentOperations {
 public:
  // `of_launch`: it was matched by its place in a launch.
  void Add(const MatchKey& key, std::shared_ptr<const std::string> text, bool of_launch) {
    entries_[count_++ % entries_.size()] = {key, std::move(text)};
    if (!of_launch || key.sequence < newest_) return;
    if (key.sequence > newest_) ended_.clear();
    newest_ = key.sequence;
    if (ended_.size() < kMostEnded) ended_.push_back(PlaceOf(key));
  }
  // What it was; null when it is not among them.
  const std::string* Find(const MatchKey& key) const {
    for (const Entry& entry : entries_) {
      if (entry.text != nullptr && entry.key == key) return entry.text.get();
    }
    return nullptr;
  }
  // Whether an operation of a launch, which is not under way, has ended: also one that ended long ago. A
  // member runs its launches one after the other, so nothing of one before the newest is to come.
  bool HasEnded(const MatchKey& key) const {
    if (key.sequence != newest_) return key.sequence < newest_;
    return ended_.size() == kMostEnded ||
           std::find(ended_.begin(), ended_.end(), PlaceOf(key)) != ended_.end();
  }
  // How many have ended so far.
  uint64_t count() const { return count_; }

 private:
  // Of one launch: 512 KiB. Which operations of a longer one are to come is not known.
  static constexpr size_t kMostEnded = 65536;
  struct Entry {
    MatchKey key;
    std::shared_ptr<const std::string> text;
  };
  static uint64_t PlaceOf(const MatchKey& key) { return Mix(Mix(0, key.site), key.iteration); }

  std::array<Entry, 64> entries_;
  uint64_t count_ = 0;
  uint64_t newest_ = 0;           // the newest launch of which an operation has ended
  std::vector<uint64_t> ended_;   // the operations of it that have ended
};

}  // namespace jaxccomp
