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
#include <utility>

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

// The same of large payloads, which are counted in bytes alone. The receiver checks that its sender keeps to its credit,
// since the payloads lie in the receiver's memory.
class PayloadCredit {
 public:
  explicit PayloadCredit(int64_t granted_bytes) : granted_bytes_(granted_bytes), left_bytes_(granted_bytes) {}

  // ---- As the sender. Whether a payload may go unasked now, or may at all.
  bool Covers(int64_t bytes) const { return bytes <= left_bytes_; }
  bool MayCover(int64_t bytes) const { return bytes <= granted_bytes_; }
  void Spend(int64_t bytes) { left_bytes_ -= bytes; }
  // False: the receiver gives back more than was spent.
  bool Regain(int64_t bytes) {
    if (bytes <= 0 || bytes > granted_bytes_ - left_bytes_) return false;
    left_bytes_ += bytes;
    return true;
  }

  // ---- As the receiver. False: the sender has used more than it was granted.
  bool Use(int64_t bytes) {
    if (bytes > granted_bytes_ - used_bytes_) return false;
    used_bytes_ += bytes;
    return true;
  }
  // A payload needs no memory here, or no more. Returns how much credit to give back now: 0 until a portion is owed.
  int64_t Return(int64_t bytes) {
    constexpr int64_t kPortions = 16;   // few messages, and never late
    owed_bytes_ += bytes;
    if (owed_bytes_ < granted_bytes_ / kPortions) return 0;
    used_bytes_ -= owed_bytes_;
    return std::exchange(owed_bytes_, 0);
  }

 private:
  int64_t granted_bytes_;
  int64_t left_bytes_;       // of the sender
  int64_t used_bytes_ = 0;   // of the receiver: what has come on credit that has not been given back,
  int64_t owed_bytes_ = 0;   // and the part of it that needs no memory here
};

}  // namespace jaxccomp
