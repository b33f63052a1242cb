// Flow control by credit, of the small messages from one process to another.
//
// The receiver grants its sender so many bytes and so many messages that it has not taken yet. The
// sender spends credit on each message that it sends unasked. The receiver owes it back when an
// operation has taken the message, and settles in bulk: along with the next message that goes that way
// anyhow, or when half of all credit is owed. Both sides of one process's traffic with another one are
// counted here; nothing here sends.
#pragma once

#include <algorithm>
#include <cstdint>

namespace jaxccomp {

class Credit {
 public:
  struct Amount {
    int64_t bytes = 0;
    int64_t messages = 0;
    friend bool operator==(const Amount&, const Amount&) = default;
  };

  // What each of up to 64 processes may be granted, cut down so that more of them get no more together.
  static constexpr int kProcesses = 64;
  static Amount Share(Amount granted, int processes) {
    auto share = [processes](int64_t whole) {
      return processes <= kProcesses ? whole : whole * kProcesses / processes;
    };
    // A message at a time is little, but not nothing.
    return {share(granted.bytes),
            granted.messages > 0 ? std::max<int64_t>(share(granted.messages), 1) : 0};
  }

  void Grant(Amount limit) { limit_ = limit; }

  // ---- As the sender. Whether a message of `bytes` may go unasked now.
  bool Covers(int64_t bytes) const {
    return spent_.messages < limit_.messages && spent_.bytes + bytes <= limit_.bytes;
  }
  void Spend(int64_t bytes) {
    ++spent_.messages;
    spent_.bytes += bytes;
  }
  // The receiver gives so much back. Never more than was spent: a receiver counts what it took.
  bool Regain(Amount returned) {
    if (returned.bytes < 0 || returned.messages < 0 || returned.bytes > spent_.bytes ||
        returned.messages > spent_.messages) {
      return false;
    }
    spent_.bytes -= returned.bytes;
    spent_.messages -= returned.messages;
    return true;
  }
  Amount spent() const { return spent_; }

  // ---- As the receiver. A message has been taken; one that had been counted as taken is kept after all.
  void Take(int64_t bytes) {
    ++owed_.messages;
    owed_.bytes += bytes;
  }
  void Keep(int64_t bytes) {
    --owed_.messages;
    owed_.bytes -= bytes;
  }
  // Whether the sender should hear of it even if nothing else goes that way.
  bool IsDue() const {
    return (owed_.messages > 0 && 2 * owed_.messages >= limit_.messages) ||
           (owed_.bytes > 0 && 2 * owed_.bytes >= limit_.bytes);
  }
  // What is owed, which is nothing from now on. Below zero it is while a message is being kept.
  Amount Settle() {
    if (owed_.messages <= 0 || owed_.bytes < 0) return {};
    const Amount all = owed_;
    owed_ = {};
    return all;
  }

 private:
  Amount limit_, spent_, owed_;
};

}  // namespace jaxccomp
