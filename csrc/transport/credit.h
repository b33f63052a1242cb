// Flow control by credit for small messages between two processes.
//
// The receiver grants its sender a number of bytes and messages that it has not taken yet. The sender spends credit
// on each message that it sends unasked. When an operation has taken the message, the receiver owes the credit. It
// returns credit in bulk: with the next message to the sender, or in a message of its own when half of all credit is
// owed. One Credit counts both directions between two processes; it sends nothing.
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

  // Credit per process. Above kProcesses processes it shrinks, so that their total stays the same.
  static constexpr int kProcesses = 64;
  static Amount Share(Amount granted, int processes) {
    auto share = [processes](int64_t whole) {
      return processes <= kProcesses ? whole : whole * kProcesses / processes;
    };
    // At least one message, unless none is granted.
    return {share(granted.bytes),
            granted.messages > 0 ? std::max<int64_t>(share(granted.messages), 1) : 0};
  }

  void Grant(Amount limit) { limit_ = limit; }

  // ---- As the sender. Whether a message of `bytes` may be sent now without a request of the receiver.
  bool Covers(int64_t bytes) const {
    return spent_.messages < limit_.messages && spent_.bytes + bytes <= limit_.bytes;
  }
  void Spend(int64_t bytes) {
    ++spent_.messages;
    spent_.bytes += bytes;
  }
  // The receiver returns credit. False: it returns more than was spent.
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

  // ---- As the receiver. Take: a message has been taken, so credit is owed. Keep: undoes that for a kept message.
  void Take(int64_t bytes) {
    ++owed_.messages;
    owed_.bytes += bytes;
  }
  void Keep(int64_t bytes) {
    --owed_.messages;
    owed_.bytes -= bytes;
  }
  // Whether the owed credit is worth a message of its own.
  bool IsDue() const {
    return (owed_.messages > 0 && 2 * owed_.messages >= limit_.messages) ||
           (owed_.bytes > 0 && 2 * owed_.bytes >= limit_.bytes);
  }
  // Takes the owed credit, which is then zero. It is negative while a kept message is being delivered.
  Amount Settle() {
    if (owed_.messages <= 0 || owed_.bytes < 0) return {};
    const Amount all = owed_;
    owed_ = {};
    return all;
  }

 private:
  Amount limit_, spent_, owed_;
};

// Credit of large payloads, in bytes only. The receiver checks that its sender keeps to it, since the payloads lie in
// the receiver's memory.
class PayloadCredit {
 public:
  explicit PayloadCredit(int64_t granted_bytes) : granted_bytes_(granted_bytes), left_bytes_(granted_bytes) {}

  // ---- As the sender. Whether a payload may go unasked now, or may at all.
  bool Covers(int64_t bytes) const { return bytes <= left_bytes_; }
  bool MayCover(int64_t bytes) const { return bytes <= granted_bytes_; }
  void Spend(int64_t bytes) { left_bytes_ -= bytes; }
  // False: the receiver returns more than was spent.
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
  // A payload needs no memory here, or no longer does. Returns the credit to send back now: 0 until a portion is
  // owed.
  int64_t Return(int64_t bytes) {
    constexpr int64_t kPortions = 16;   // few messages, each long before the credit is used up
    owed_bytes_ += bytes;
    if (owed_bytes_ < granted_bytes_ / kPortions) return 0;
    used_bytes_ -= owed_bytes_;
    return std::exchange(owed_bytes_, 0);
  }

 private:
  int64_t granted_bytes_;
  int64_t left_bytes_;       // sender: credit left
  int64_t used_bytes_ = 0;   // receiver: bytes sent on credit that has not been returned
  int64_t owed_bytes_ = 0;   // receiver: the part of used_bytes_ that needs no memory here
};

}  // namespace jaxccomp
