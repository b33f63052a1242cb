// What tells the operations of a process apart, and which message belongs to which.
#pragma once

#include <array>
#include <algorithm>
#include <cstddef>
#include <cstdint>

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

// The operations that ended last.
class RecentKeys {
 public:
  void Add(const MatchKey& key) { keys_[next_++ % keys_.size()] = key; }
  bool Contains(const MatchKey& key) const {
    return std::find(keys_.begin(), keys_.end(), key) != keys_.end();
  }

 private:
  std::array<MatchKey, 64> keys_;
  size_t next_ = 0;
};

}  // namespace jaxccomp
